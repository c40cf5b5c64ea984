package main

import (
	"context"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/internal/proxy"
)

// Case M1: watchers and engines behind a frozen network hold the end up for the grace period and no longer; whoever can be
// reached hears why.
func TestServe_EndsByItselfAlthoughPeersAreFrozen(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const grace, engines, watchers = time.Second, 3, 3
	between := proxy.Start(t, freePorts(t, 1)[0])
	_, port, err := net.SplitHostPort(between.Addr())
	if err != nil {
		t.Fatal(err)
	}
	_, urls := simulate(t, engines, 1, portRange(t, engines), "1")
	list := write(t, "workers", strings.Join(urls, "\n")+"\n")
	m := serve(t, append(fast, "--shutdown-grace", grace.String(), "--advertise-port", port, "--workers-file", list)...)
	between.Retarget(m.grpc)
	m.until(ctx, "not all fresh", allFresh(engines))
	for range watchers {
		watchPicture(ctx, t, between.Addr())
	}
	reached := watchPicture(ctx, t, m.grpc)
	report, err := modelgatewaypb.NewLoadMonitorServiceClient(dial(t, m.grpc)).Report(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for m.metric(ctx, "loadmonitor_report_streams") < engines+1 {
		m.pause(ctx, "not every report stream is open")
	}

	between.Freeze()
	begun := time.Now()
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for { // what was on its way comes first
		if _, err = reached.Recv(); err != nil {
			break
		}
	}
	for what, err := range map[string]error{"watch": err, "report stream": report.RecvMsg(new(emptypb.Empty))} {
		if st := status.Convert(err); st.Code() != codes.Unavailable || !strings.Contains(st.Message(), "shutting down") {
			t.Errorf("the %s ended with %v, want UNAVAILABLE and that the monitor is shutting down", what, st)
		}
	}
	if code := m.wait(grace + 10*time.Second); code != 0 {
		t.Errorf("exit code %d\n%s", code, m.stderr)
	}
	if took := time.Since(begun); took < grace {
		t.Errorf("ended after %v: the frozen peers did not count", took)
	}
}

// watchPicture opens a watch over a connection of its own and reads the first picture.
func watchPicture(ctx context.Context, t *testing.T, addr string) loadmonitorpb.SnapshotService_WatchClient {
	t.Helper()
	stream, err := loadmonitorpb.NewSnapshotServiceClient(dial(t, addr)).Watch(ctx, &loadmonitorpb.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	return stream
}
