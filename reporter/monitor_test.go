package reporter

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/emptypb"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// monitor is the other side of the push contract: a gRPC server that keeps what it received.
type monitor struct {
	modelgatewaypb.UnimplementedLoadMonitorServiceServer

	listener *bufconn.Listener
	// serve handles one stream after it was counted; nil reads until the stream ends.
	serve func(stream reportStream) error

	mu      sync.Mutex
	opened  []time.Time
	ended   []ending
	reports []arrival
}

type reportStream = grpc.ClientStreamingServer[modelgatewaypb.LoadReport, emptypb.Empty]

type arrival struct {
	at     time.Time
	report *modelgatewaypb.LoadReport
}

type ending struct {
	at  time.Time
	err error // of the receive
}

func (m *monitor) Report(stream reportStream) error {
	m.mu.Lock()
	m.opened = append(m.opened, time.Now())
	m.mu.Unlock()
	if m.serve != nil {
		return m.serve(stream)
	}
	return m.drain(stream)
}

// drain reads until the stream ends.
func (m *monitor) drain(stream reportStream) error {
	for {
		if _, err := m.receive(stream); err != nil {
			return err
		}
	}
}

func (m *monitor) receive(stream reportStream) (*modelgatewaypb.LoadReport, error) {
	report, err := stream.Recv()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.ended = append(m.ended, ending{time.Now(), err})
		return nil, err
	}
	m.reports = append(m.reports, arrival{time.Now(), report})
	return report, nil
}

func (m *monitor) arrivals() []arrival {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]arrival(nil), m.reports...)
}

func (m *monitor) last(t *testing.T) *modelgatewaypb.LoadReport {
	t.Helper()
	all := m.arrivals()
	if len(all) == 0 {
		t.Fatal("no report arrived")
	}
	return all[len(all)-1].report
}

func (m *monitor) streams() []time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]time.Time(nil), m.opened...)
}

func (m *monitor) endings() []ending {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]ending(nil), m.ended...)
}

// dial reaches the monitor whatever address was registered.
func (m *monitor) dial() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return m.listener.DialContext(ctx) })
}

// start serves until the test's end.
func (m *monitor) start(t *testing.T) {
	t.Helper()
	m.listener = bufconn.Listen(256 << 10)
	server := grpc.NewServer()
	modelgatewaypb.RegisterLoadMonitorServiceServer(server, m)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(m.listener); err != nil {
			t.Errorf("serve: %v", err)
		}
	}()
	t.Cleanup(func() { server.Stop(); <-done })
}

// run starts a reporter, inside a bubble, that ends before the test does.
func run(t *testing.T, opts Options) *Reporter {
	t.Helper()
	r, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	runReporter(t, r)
	synctest.Wait()
	return r
}

func runReporter(t *testing.T, r *Reporter) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// idle is a sampler with one idle rank, sampled now.
func idle(dst []load.RankLoad) ([]load.RankLoad, error) {
	var r load.RankLoad
	r.SetInt(load.MaxTotalNumTokens, 1000)
	return append(dst, r), nil
}

var target1 = netip.MustParseAddrPort("127.0.0.1:50061")

// request is a registration of worker w1 for target1: a report each second, a lease of 15 s.
func request() StartRequest {
	return StartRequest{Target: target1, WorkerAddr: "http://127.0.0.2:30000", ReportInterval: time.Second, LeaseTTL: 15 * time.Second}
}

func mustStart(t *testing.T, r *Reporter, req StartRequest) Lease {
	t.Helper()
	lease, err := r.StartReporting(req)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// after lets d pass and everything that happens by then finish.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// refuseAfterFirst takes one report of each stream and ends it.
func refuseAfterFirst(m *monitor, err error) func(reportStream) error {
	return func(stream reportStream) error {
		if _, recvErr := m.receive(stream); recvErr != nil {
			return recvErr
		}
		if err == nil {
			return stream.SendAndClose(&emptypb.Empty{})
		}
		return err
	}
}

// serveMonitor serves the push contract on a real socket and passes on the worker address of each report.
func serveMonitor(t *testing.T, reports chan<- string) netip.AddrPort {
	t.Helper()
	m := &monitor{}
	m.serve = func(stream reportStream) error {
		for {
			report, err := m.receive(stream)
			if err != nil {
				return err
			}
			select {
			case reports <- report.Worker.WorkerAddr:
			case <-stream.Context().Done():
			}
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	modelgatewaypb.RegisterLoadMonitorServiceServer(server, m)
	done := make(chan struct{})
	go func() { defer close(done); server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return listener.Addr().(*net.TCPAddr).AddrPort()
}

var errSampling = errors.New("scheduler does not answer")
