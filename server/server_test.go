package server

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// hangGuard bounds waits for things that must happen; it is no measure of speed.
const hangGuard = 30 * time.Second

// fakeIngest records what the server applies and releases.
type fakeIngest struct {
	// apply decides; nil accepts everything. It is called without a lock.
	apply func(st *load.Stream, r *load.Report) error

	applied chan load.Report  // copies, accepted or not
	ended   chan *load.Stream // released streams

	mu       sync.Mutex
	released map[*load.Stream]int
	late     int // Apply after Release
}

func newFakeIngest(apply func(*load.Stream, *load.Report) error) *fakeIngest {
	return &fakeIngest{
		apply:    apply,
		applied:  make(chan load.Report, 10000),
		ended:    make(chan *load.Stream, 10000),
		released: make(map[*load.Stream]int),
	}
}

func (f *fakeIngest) Apply(st *load.Stream, r *load.Report) error {
	f.mu.Lock()
	if f.released[st] > 0 {
		f.late++
	}
	f.mu.Unlock()
	kept := *r
	kept.Ranks = slices.Clone(r.Ranks)
	var err error
	if f.apply != nil {
		err = f.apply(st, r)
	}
	f.applied <- kept
	return err
}

func (f *fakeIngest) Release(st *load.Stream) {
	f.mu.Lock()
	f.released[st]++
	f.mu.Unlock()
	f.ended <- st
}

// fakeSnapshots publishes fleet states.
type fakeSnapshots struct {
	pub atomic.Pointer[load.Publication]

	mu   sync.Mutex
	next chan struct{}
}

func newFakeSnapshots(state load.FleetState) *fakeSnapshots {
	f := &fakeSnapshots{}
	f.publish(state)
	return f
}

func (f *fakeSnapshots) publish(state load.FleetState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.next
	f.next = make(chan struct{})
	f.pub.Store(&load.Publication{Snapshot: &load.Snapshot{State: state, Version: 1}, Next: f.next})
	if old != nil {
		close(old)
	}
}

func (f *fakeSnapshots) Current() *load.Publication { return f.pub.Load() }

// fakeRegistry answers as it was told to.
type fakeRegistry struct {
	mu       sync.Mutex
	list     []load.Registration
	register func(load.Worker) (load.Worker, error)
	remove   func(string) error

	registered []load.Worker
	removed    []string
}

func (f *fakeRegistry) Registrations() []load.Registration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list
}

func (f *fakeRegistry) Register(w load.Worker) (load.Worker, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.registered = append(f.registered, w)
	if f.register != nil {
		return f.register(w)
	}
	return w, nil
}

func (f *fakeRegistry) Deregister(id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removed = append(f.removed, id)
	if f.remove != nil {
		return f.remove(id)
	}
	return nil
}

// fakeWatch is a SnapshotService whose Watch sends one frame and then waits for Shutdown. With flood it sends without
// end, so that a watcher that does not read blocks it in flow control.
type fakeWatch struct {
	loadmonitorpb.UnimplementedSnapshotServiceServer
	flood      []byte
	onShutdown func()
	closing    chan struct{}
}

func newFakeWatch() *fakeWatch { return &fakeWatch{closing: make(chan struct{})} }

func (f *fakeWatch) Watch(_ *loadmonitorpb.WatchRequest, stream grpc.ServerStreamingServer[loadmonitorpb.WatchResponse]) error {
	frame := loadmonitorpb.WatchResponse_builder{Epoch: "e", View: string(f.flood), Last: true}.Build()
	for {
		if err := stream.Send(frame); err != nil {
			return err
		}
		if f.flood == nil {
			break
		}
		select {
		case <-f.closing:
			return status.Error(codes.Unavailable, load.ErrShuttingDown.Error())
		default:
		}
	}
	select {
	case <-f.closing:
		return status.Error(codes.Unavailable, load.ErrShuttingDown.Error())
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

func (f *fakeWatch) Shutdown() {
	if f.onShutdown != nil {
		f.onShutdown()
	}
	close(f.closing)
}

// running is a server under test on real sockets.
type running struct {
	*Server
	t      *testing.T
	ingest *fakeIngest
	snap   *fakeSnapshots
	reg    *fakeRegistry
	log    *logBuffer
	stop   context.CancelFunc
	done   chan error // Run's result
}

// start runs a server on free loopback ports until the test ends. Fakes fill what opts leaves out.
func start(t *testing.T, opts Options) *running {
	t.Helper()
	r := &running{t: t, log: &logBuffer{}, done: make(chan error, 1)}
	if opts.Ingest == nil {
		opts.Ingest = newFakeIngest(nil)
	}
	r.ingest, _ = opts.Ingest.(*fakeIngest)
	if opts.Snapshots == nil {
		opts.Snapshots = newFakeSnapshots(load.FleetReady)
	}
	r.snap = opts.Snapshots.(*fakeSnapshots)
	if opts.Registry == nil {
		opts.Registry = &fakeRegistry{}
	}
	r.reg = opts.Registry.(*fakeRegistry)
	opts.Logger = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	opts.GRPCAddr = orDefault(opts.GRPCAddr, "127.0.0.1:0")
	opts.HTTPAddr = orDefault(opts.HTTPAddr, "127.0.0.1:0")
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.Server = s
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.done <- s.Run(ctx) }()
	t.Cleanup(func() { r.shutdown() })
	if r.snap.Current().Snapshot.State != load.FleetWarmingUp {
		for p, changed := s.ready.phase(); p == warmingUp; p, _ = s.ready.phase() {
			next(t, changed, "readiness")
		}
	}
	return r
}

// shutdown stops the server and waits for Run.
func (r *running) shutdown() {
	r.stop()
	select {
	case err := <-r.done:
		r.done <- err
		if err != nil {
			r.t.Errorf("Run: %v", err)
		}
	case <-time.After(hangGuard):
		r.t.Error("Run does not return")
	}
	if r.ingest == nil {
		return
	}
	r.ingest.mu.Lock()
	defer r.ingest.mu.Unlock()
	for _, n := range r.ingest.released {
		if n != 1 {
			r.t.Errorf("a stream was released %d times", n)
		}
	}
	if r.ingest.late > 0 {
		r.t.Errorf("%d reports were applied after their stream was released", r.ingest.late)
	}
}

// dial connects to the gRPC listener.
func (r *running) dial(opts ...grpc.DialOption) *grpc.ClientConn {
	r.t.Helper()
	return dialAddr(r.t, r.GRPCAddr().String(), opts...)
}

func dialAddr(t testing.TB, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// url returns the address of an HTTP path.
func (r *running) url(path string) string { return "http://" + r.HTTPAddr().String() + path }

// do sends an HTTP request and returns the answer with its whole body.
func (r *running) do(method, path string, body io.Reader) (*http.Response, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url(path), body)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp, string(b)
}

type reportStream = grpc.ClientStreamingClient[modelgatewaypb.LoadReport, emptypb.Empty]

// report opens a report stream.
func report(t testing.TB, cc grpc.ClientConnInterface) reportStream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stream, err := modelgatewaypb.NewLoadMonitorServiceClient(cc).Report(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func send(t testing.TB, stream reportStream, r *modelgatewaypb.LoadReport) {
	t.Helper()
	if err := stream.Send(r); err != nil && err != io.EOF { // EOF: the stream has ended, its status says why
		t.Fatal(err)
	}
}

// endOf waits for the end of a stream and returns its status.
func endOf(t testing.TB, stream grpc.ClientStream) *status.Status {
	t.Helper()
	got := make(chan error, 1)
	go func() { got <- stream.RecvMsg(new(emptypb.Empty)) }()
	select {
	case err := <-got:
		return status.Convert(err)
	case <-time.After(hangGuard):
		t.Fatal("stream does not end")
		return nil
	}
}

// next waits for a value.
func next[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(hangGuard):
		t.Fatalf("no %s", what)
		panic("unreachable")
	}
}

// count returns how often a reason was counted.
func (t *tally) count(reason string) int64 { return t.counts[reason].Load() }

// sane returns R(src, seq): a report as an engine sends it.
func sane(src string, seq uint64, ranks ...*modelgatewaypb.RankLoad) *modelgatewaypb.LoadReport {
	if len(ranks) == 0 {
		ranks = []*modelgatewaypb.RankLoad{rank(0)}
	}
	return &modelgatewaypb.LoadReport{
		SourceInstanceId: src,
		SequenceId:       seq,
		ReportTimeUnixMs: 1_700_000_000_000,
		Worker: &modelgatewaypb.Worker{
			WorkerAddr: "http://127.0.0.5:30000", WorkerType: modelgatewaypb.WorkerType_WORKER_TYPE_DECODE, Model: new("m1"), Zone: new("z1"),
		},
		Status: modelgatewaypb.ReportStatus_REPORT_STATUS_HEALTHY,
		Ranks:  ranks,
	}
}

func rank(n int32) *modelgatewaypb.RankLoad {
	return &modelgatewaypb.RankLoad{
		DpRank: n, SnapshotTimeUnixMs: 1_700_000_000_000, NumRunningReqs: 1, NumUsedTokens: 100, NumTotalTokens: 100,
		MaxTotalNumTokens: 1000, MaxRunningRequests: 16, TokenUsage: 0.1, GenThroughput: 50,
	}
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
