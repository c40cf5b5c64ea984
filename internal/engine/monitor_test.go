package engine

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
)

// monitor speaks the push contract on a real socket and passes on what it hears.
type monitor struct {
	modelgatewaypb.UnimplementedLoadMonitorServiceServer
	addr   *net.TCPAddr
	heard  chan *modelgatewaypb.LoadReport
	closed chan ending
	quit   chan struct{}
}

// ending is how the stream of a worker ended.
type ending struct {
	worker string
	err    error
}

func (m *monitor) Report(stream grpc.ClientStreamingServer[modelgatewaypb.LoadReport, emptypb.Empty]) error {
	worker := ""
	for {
		report, err := stream.Recv()
		if err != nil {
			select {
			case m.closed <- ending{worker, err}:
			case <-m.quit:
			}
			return err
		}
		worker = report.Worker.WorkerAddr
		select {
		case m.heard <- report:
		case <-stream.Context().Done(): // nobody takes it any more; the next Recv says why
		case <-m.quit:
			return status.Error(codes.Unavailable, "the test is over")
		}
	}
}

func startMonitor(t *testing.T) *monitor {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &monitor{
		addr:   l.Addr().(*net.TCPAddr),
		heard:  make(chan *modelgatewaypb.LoadReport),
		closed: make(chan ending, 64),
		quit:   make(chan struct{}),
	}
	server := grpc.NewServer()
	modelgatewaypb.RegisterLoadMonitorServiceServer(server, m)
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	t.Cleanup(func() { close(m.quit); server.Stop(); serving.Wait() })
	return m
}

// await returns the first report that the condition accepts.
func (m *monitor) await(t *testing.T, what string, accept func(*modelgatewaypb.LoadReport) bool) *modelgatewaypb.LoadReport {
	t.Helper()
	tooLong := time.After(30 * time.Second)
	for {
		select {
		case r := <-m.heard:
			if accept(r) {
				return r
			}
		case <-tooLong:
			t.Fatalf("no report: %s", what)
		}
	}
}

// register asks an engine for a report each 50 ms.
func (m *monitor) register(t *testing.T, url string) {
	t.Helper()
	body := fmt.Sprintf(`{"ip": %q, "port": %d, "report_interval_ms": 50, "lease_ttl_ms": 60000}`, m.addr.IP, m.addr.Port)
	for { // 503 until the reporter of a new process runs
		res, err := http.Post(url+"/v1/start_reporting", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			return
		}
		if res.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("%s: %d %s", url, res.StatusCode, answer)
		}
	}
}
