package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// Case M1 and rule LIFE1: with a hundred streams of each kind open, some behind a network that does not forward any more,
// Run returns within the grace period, everybody who can be reached learns why, and readiness goes first.
func TestRun_ShutdownEndsEveryStream(t *testing.T) {
	const each, perConn = 100, 10
	watch := newFakeWatch()
	rest := &fakeREST{ended: make(chan struct{})}
	r := start(t, Options{Snapshot: watch, REST: rest, Grace: 4 * time.Second}) // far more than it takes to tell all who can be reached
	var atShutdown phase
	watch.onShutdown = func() { atShutdown, _ = r.ready.phase() }
	proxy := newFreezer(t, r.GRPCAddr().String())

	var reports []reportStream
	var watches []grpc.ServerStreamingClient[loadmonitorpb.WatchResponse]
	open := func(cc *grpc.ClientConn) {
		s := report(t, cc)
		send(t, s, sane("src", 1))
		reports = append(reports, s)
		w, err := loadmonitorpb.NewSnapshotServiceClient(cc).Watch(t.Context(), &loadmonitorpb.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Recv(); err != nil {
			t.Fatal(err)
		}
		watches = append(watches, w)
	}
	for range 5 { // first, so that they have their own connections
		open(dialAddr(t, proxy.Addr().String()))
	}
	for len(reports) < each {
		cc := r.dial()
		for range min(perConn, each-len(reports)) {
			open(cc)
		}
	}
	for range each {
		next(t, r.ingest.applied, "report")
	}
	resp, err := http.Get(r.url("/v1/load_monitor/watch"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	proxy.frozen.Store(true)

	begun := time.Now()
	r.shutdown()
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("the shutdown took %v with a grace period of 4 s", took)
	}
	assertNothingRuns(t)
	if atShutdown != closing {
		t.Errorf("streams were ended while the server was %v", atShutdown)
	}
	for range each {
		next(t, r.ingest.ended, "release")
	}
	if n := r.reports.open.count(); n != 0 {
		t.Errorf("%d report streams are open", n)
	}
	for i := 5; i < each; i++ {
		if st := endOf(t, reports[i]); st.Code() != codes.Unavailable || !strings.Contains(st.Message(), "shutting down") {
			t.Errorf("report stream %d ended with %v", i, st)
		}
		if _, err := watches[i].Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "shutting down") {
			t.Errorf("watch %d ended with %v", i, err)
		}
	}
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "bye\n" {
		t.Errorf("the HTTP watch ended with %q, %v", b, err)
	}
	if _, err := http.Get(r.url("/healthz")); err == nil {
		t.Error("HTTP is still served")
	}
}

// The shutdown part of case I2: watchers that never read are blocked in flow control; they do not hold anything up.
func TestRun_ShutdownCutsWatchersThatDoNotRead(t *testing.T) {
	watch := newFakeWatch()
	watch.flood = []byte(strings.Repeat("x", 32<<10))
	r := start(t, Options{Snapshot: watch, Grace: 200 * time.Millisecond})
	for range 15 {
		w, err := loadmonitorpb.NewSnapshotServiceClient(r.dial()).Watch(t.Context(), &loadmonitorpb.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	r.shutdown()
	assertNothingRuns(t)
}

// Rule LIFE1: while streams drain, whoever asks is told that the server is not ready; a refused connection would say nothing.
func TestRun_SaysThatItIsNotReadyWhileStreamsDrain(t *testing.T) {
	watch := newFakeWatch()
	r := start(t, Options{Snapshot: &pager{watch, 1 << 20, 1}, Grace: hangGuard})
	p := newRawPeer(t, r.GRPCAddr().String())
	p.call() // its answer stays unread, so the server has to wait
	await(t, "the answer waits", func() bool { n, _ := r.unread.account(); return n > 0 })
	r.stop()
	next(t, watch.closing, "shutdown")
	for range 3 {
		http.DefaultClient.CloseIdleConnections()
		if resp, body := r.do(http.MethodGet, "/readyz", nil); resp.StatusCode != http.StatusServiceUnavailable || body != "not ready: shutting_down\n" {
			t.Errorf("%s %q", resp.Status, body)
		}
	}
	p.close()
	r.shutdown()
	assertNothingRuns(t)
	if _, err := http.Get(r.url("/readyz")); err == nil {
		t.Error("HTTP is still served")
	}
}

// An HTTP answer that its reader does not take is cut at the end of the grace period.
func TestRun_ShutdownCutsStuckHTTPAnswers(t *testing.T) {
	started := make(chan struct{})
	rest := stuckREST{started: started}
	r := start(t, Options{REST: rest, Grace: 200 * time.Millisecond})
	c, err := net.Dial("tcp", r.HTTPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /v1/load_monitor/snapshot HTTP/1.1\r\nHost: m\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	next(t, started, "request")
	r.shutdown()
	assertNothingRuns(t)
}

// stuckREST writes until it fails.
type stuckREST struct{ started chan struct{} }

func (s stuckREST) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	close(s.started)
	for {
		if _, err := w.Write(make([]byte, 64<<10)); err != nil {
			return
		}
	}
}

func (stuckREST) Shutdown() {}

// assertNothingRuns reports handlers and loops of a server that are alive after Run has returned.
func assertNothingRuns(t *testing.T) {
	t.Helper()
	buf := make([]byte, 16<<20)
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		for _, frame := range []string{"server.(*reports)", "server.(*Server).", "server.(*health)", "server.(*fakeWatch)", "server.stuckREST", "server.(*fakeREST)", "server.(*readiness)"} {
			if strings.Contains(g, frame) {
				t.Errorf("still running after Run:\n%s", g)
			}
		}
	}
}

func TestRun_StopsWhenTheContextIsDoneAlready(t *testing.T) {
	s, err := New(Options{Ingest: newFakeIngest(nil), Registry: &fakeRegistry{}, Snapshots: newFakeSnapshots(load.FleetWarmingUp),
		GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
	if err := s.Run(ctx); err == nil {
		t.Error("Run may be called twice")
	}
	if c, err := net.Dial("tcp", s.GRPCAddr().String()); err == nil {
		_ = c.Close()
		t.Error("the gRPC listener is open")
	}
}

// brokenListener fails.
type brokenListener struct {
	net.Listener
	err error
}

func (l brokenListener) Accept() (net.Conn, error) { return nil, l.err }

func TestRun_FailsWithItsListener(t *testing.T) {
	for _, kind := range []string{"gRPC", "HTTP"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		broken := brokenListener{l, errors.New("out of luck")}
		opts := Options{Ingest: newFakeIngest(nil), Registry: &fakeRegistry{}, Snapshots: newFakeSnapshots(load.FleetReady),
			GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0"}
		if kind == "gRPC" {
			opts.GRPCListener = broken
		} else {
			opts.HTTPListener = broken
		}
		s, err := New(opts)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Run(t.Context()); !errors.Is(err, broken.err) || !strings.Contains(err.Error(), kind) {
			t.Errorf("%s: error is %v", kind, err)
		}
	}
}

// Like case N1: what peers send as credentials, and what a report says beyond its reason, is in no log line.
func TestLog_HoldsNoSecrets(t *testing.T) {
	ingest := newFakeIngest(func(_ *load.Stream, r *load.Report) error { return load.ErrUnknownWorker })
	r := start(t, Options{Ingest: ingest})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer sentinel-1")
	stream, err := modelgatewaypb.NewLoadMonitorServiceClient(r.dial()).Report(ctx)
	if err != nil {
		t.Fatal(err)
	}
	m := sane("src", 1)
	m.LastError = new("sentinel-2")
	send(t, stream, m)
	endOf(t, stream)
	req, err := http.NewRequest(http.MethodPost, r.url(workersPath+"?token=sentinel-3"), strings.NewReader(`{"url":"http://u:sentinel-4@127.0.0.5:1","x":1}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer sentinel-5")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	r.shutdown()
	if log := r.log.String(); strings.Contains(log, "sentinel") || !strings.Contains(log, "unknown_worker") {
		t.Errorf("log:\n%s", log)
	}
}

// The same trouble over and over is one line in the log.
func TestEpisodes_RepeatedTroubleIsOneLine(t *testing.T) {
	ingest := newFakeIngest(func(*load.Stream, *load.Report) error { return load.ErrUnknownWorker })
	r := start(t, Options{Ingest: ingest})
	cc := r.dial()
	var wg sync.WaitGroup
	for range 20 {
		stream := report(t, cc)
		send(t, stream, sane("src", 1))
		wg.Go(func() { endOf(t, stream) })
	}
	wg.Wait()
	if n := strings.Count(r.log.String(), "unknown_worker"); n != 1 {
		t.Errorf("%d lines:\n%s", n, r.log)
	}
	if n := r.reports.ended.count("unknown_worker"); n != 20 {
		t.Errorf("counted %d", n)
	}
}
