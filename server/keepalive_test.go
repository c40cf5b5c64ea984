package server

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// bubble is a server inside a synctest bubble, where time is the test's.
type bubble struct {
	*Server
	t      *testing.T
	ingest *fakeIngest
	grpc   *bufconn.Listener
	http   *bufconn.Listener
}

// inBubble runs f beside a server on in-memory connections. options is called inside, so that its channels belong there.
func inBubble(t *testing.T, options func() Options, f func(*testing.T, *bubble)) {
	synctest.Test(t, func(t *testing.T) {
		opts := options()
		b := &bubble{t: t, grpc: bufconn.Listen(1 << 16), http: bufconn.Listen(1 << 16)}
		if opts.Ingest == nil {
			opts.Ingest = newFakeIngest(nil)
		}
		b.ingest = opts.Ingest.(*fakeIngest)
		opts.Snapshots = newFakeSnapshots(load.FleetReady)
		opts.Registry = &fakeRegistry{}
		opts.GRPCListener, opts.HTTPListener = b.grpc, b.http
		s, err := New(opts)
		if err != nil {
			t.Fatal(err)
		}
		b.Server = s
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		f(t, b)
	})
}

func noOptions() Options { return Options{} }

func (b *bubble) dial(opts ...grpc.DialOption) *grpc.ClientConn {
	b.t.Helper()
	cc, err := grpc.NewClient("passthrough:///bubble", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return b.grpc.DialContext(ctx) }),
	}, opts...)...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// Case H1: peers that ping every ten seconds, with and without calls, keep their connection.
func TestKeepalive_PolitePeersAreSpared(t *testing.T) {
	inBubble(t, func() Options { return Options{Snapshot: newFakeWatch()} }, func(t *testing.T, b *bubble) {
		pings := grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true})
		reporting, watching, idle := b.dial(pings), b.dial(pings), b.dial(pings)
		stream := report(t, reporting)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		frames, err := loadmonitorpb.NewSnapshotServiceClient(watching).Watch(ctx, &loadmonitorpb.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := frames.Recv(); err != nil {
			t.Fatal(err)
		}
		idle.Connect()
		for i := range uint64(20) { // ten minutes
			send(t, stream, sane("src", i+1))
			if got := next(t, b.ingest.applied, "report"); got.Sequence != i+1 {
				t.Fatalf("applied %+v", got)
			}
			time.Sleep(30 * time.Second)
		}
		for name, cc := range map[string]*grpc.ClientConn{"reporting": reporting, "watching": watching, "idle": idle} {
			if state := cc.GetState(); state != connectivity.Ready {
				t.Errorf("the %s connection is %v", name, state)
			}
		}
		if n := b.grpcConns.open.Load(); n != 3 {
			t.Errorf("%d connections are open", n)
		}
	})
}

// A peer that vanished without closing is found by pings, and its stream is released.
func TestKeepalive_DeadPeerIsReaped(t *testing.T) {
	inBubble(t, noOptions, func(t *testing.T, b *bubble) {
		gate := make(chan struct{})
		cc := b.dial(grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := b.grpc.DialContext(ctx)
			return &deafConn{Conn: c, gate: gate, closed: make(chan struct{})}, err
		}))
		stream := report(t, cc)
		send(t, stream, sane("src", 1))
		next(t, b.ingest.applied, "report")
		close(gate)
		begin := time.Now()
		<-b.ingest.ended
		if waited := time.Since(begin); waited > 30*time.Second {
			t.Errorf("the dead peer was noticed after %v", waited)
		}
	})
}

// deafConn neither reads nor writes once its gate is closed.
type deafConn struct {
	net.Conn
	gate   chan struct{}
	closed chan struct{}
}

func (c *deafConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	select {
	case <-c.gate:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (c *deafConn) Write(p []byte) (int, error) {
	select {
	case <-c.gate:
		return len(p), nil
	default:
		return c.Conn.Write(p)
	}
}

func (c *deafConn) Close() error {
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	return c.Conn.Close()
}
