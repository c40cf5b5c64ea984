package watch

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

func newService(t testing.TB, o Options) *Service {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serve mounts the service as production does, in memory so that it runs in a bubble, and returns a client.
func serve(t testing.TB, s loadmonitorpb.SnapshotServiceServer, opts ...grpc.ServerOption) loadmonitorpb.SnapshotServiceClient {
	t.Helper()
	return loadmonitorpb.NewSnapshotServiceClient(serveConn(t, s, opts...))
}

func serveConn(t testing.TB, s loadmonitorpb.SnapshotServiceServer, opts ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	serveOn(t, lis, s, opts...)
	return connectOn(t, lis, func(c net.Conn) net.Conn { return c })
}

// dialOn returns a client with a connection of its own, which wrap may tamper with.
func dialOn(t testing.TB, lis *bufconn.Listener, wrap func(net.Conn) net.Conn) loadmonitorpb.SnapshotServiceClient {
	t.Helper()
	return loadmonitorpb.NewSnapshotServiceClient(connectOn(t, lis, wrap))
}

func connectOn(t testing.TB, lis *bufconn.Listener, wrap func(net.Conn) net.Conn) *grpc.ClientConn {
	t.Helper()
	return connect(t, "passthrough:///bufconn", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		c, err := lis.DialContext(ctx)
		if err != nil {
			return nil, err
		}
		return wrap(c), nil
	}))
}

// serveTCP mounts the service on a real socket and returns its address.
func serveTCP(t testing.TB, s loadmonitorpb.SnapshotServiceServer, opts ...grpc.ServerOption) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, lis, s, opts...)
	return lis.Addr().String()
}

func serveOn(t testing.TB, lis net.Listener, s loadmonitorpb.SnapshotServiceServer, opts ...grpc.ServerOption) {
	t.Helper()
	g := grpc.NewServer(append(opts, grpc.ForceServerCodecV2(Codec()), grpc.StaticStreamWindowSize(64<<10), grpc.StaticConnWindowSize(64<<10))...)
	loadmonitorpb.RegisterSnapshotServiceServer(g, s)
	var done sync.WaitGroup
	done.Go(func() {
		if err := g.Serve(lis); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() { g.Stop(); done.Wait() })
}

func dial(t testing.TB, target string, opts ...grpc.DialOption) loadmonitorpb.SnapshotServiceClient {
	t.Helper()
	return loadmonitorpb.NewSnapshotServiceClient(connect(t, target, opts...))
}

func connect(t testing.TB, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	// A fixed window: the estimated one grows without bound in a bubble, where no time passes on the way.
	opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStaticStreamWindowSize(64<<10))
	cc, err := grpc.NewClient(target, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// arrival is one frame as a watcher saw it.
type arrival struct {
	*loadmonitorpb.WatchResponse
	at time.Time
}

// collected is a watcher that keeps what arrives.
type collected struct {
	receiver
	stream grpc.ServerStreamingClient[loadmonitorpb.WatchResponse]
	cancel context.CancelFunc

	mu       sync.Mutex
	arrivals []arrival
	err      error // why the stream ended
	done     chan struct{}
}

// watch opens a stream and collects what arrives until it ends.
func watch(t testing.TB, c loadmonitorpb.SnapshotServiceClient, req *loadmonitorpb.WatchRequest) *collected {
	t.Helper()
	w := open(t, c, req)
	go w.collect()
	return w
}

// open opens a stream without reading from it.
func open(t testing.TB, c loadmonitorpb.SnapshotServiceClient, req *loadmonitorpb.WatchRequest) *collected {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stream, err := c.Watch(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	return &collected{stream: stream, cancel: cancel, done: make(chan struct{})}
}

// collect reads until the stream ends.
func (w *collected) collect() {
	defer close(w.done)
	for {
		m, err := w.stream.Recv()
		w.mu.Lock()
		if err == nil {
			w.arrivals = append(w.arrivals, arrival{m, time.Now()})
			err = w.take(m)
		}
		w.err = err
		w.mu.Unlock()
		if err != nil {
			w.cancel()
			return
		}
	}
}

// news returns what arrived since the last call.
func (w *collected) news() []arrival {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.arrivals
	w.arrivals = nil
	return list
}

// see looks at what the watcher holds.
func (w *collected) see(look func(r *receiver)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	look(&w.receiver)
}

// holds returns the version that the watcher holds.
func (w *collected) holds() (version uint64) {
	w.see(func(r *receiver) { version = r.version })
	return version
}

// ended waits for the end of the stream and returns why it ended.
func (w *collected) ended(t testing.TB) error {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(30 * time.Second):
		t.Fatal("the stream goes on")
	}
	return w.err
}

func wantStatus(t testing.TB, err error, code codes.Code, text string) {
	t.Helper()
	if errors.Is(err, io.EOF) || status.Code(err) != code || (text != "" && !strings.Contains(status.Convert(err).Message(), text)) {
		t.Errorf("ended with %v, want %v: %s", err, code, text)
	}
}
