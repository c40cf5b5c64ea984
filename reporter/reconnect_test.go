package reporter

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

func TestStream_CodeDecidesWhatComesNext(t *testing.T) {
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		want := Connecting // not asked
		alive := true
		switch code {
		case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
			want = BackingOff
		case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
			want = AwaitingRenewal
		default:
			alive = false
		}
		t.Run(code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &monitor{}
				m.serve = refuseAfterFirst(m, status.Error(code, "because"))
				m.start(t)
				r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
				req := request()
				req.LeaseTTL = time.Minute
				mustStart(t, r, req)
				synctest.Wait()
				targets := r.Stats().Targets
				if alive != (len(targets) == 1) {
					t.Fatalf("targets %+v, want alive %v", targets, alive)
				}
				if alive && (targets[0].State != want || targets[0].LastError != "because") {
					t.Errorf("state %v, last error %q, want %v", targets[0].State, targets[0].LastError, want)
				}
				after(8 * time.Second)
				tries := len(m.streams())
				if again := tries > 1; again != (want == BackingOff) {
					t.Errorf("%d streams without a renewal", tries)
				}
				if lease := mustStart(t, r, req); lease.Renewed != alive {
					t.Errorf("renewed %v, want %v", lease.Renewed, alive)
				}
				after(10 * time.Millisecond)
				if got := len(m.streams()); want != BackingOff && got != tries+1 {
					t.Errorf("%d streams after the next POST, want %d", got, tries+1)
				}
			})
		})
	}
}

// Posting in a loop must not make the engine dial in a loop.
func TestStream_RenewalsInALoopDoNotMakeDialsInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.serve = refuseAfterFirst(m, status.Error(codes.InvalidArgument, "unknown worker"))
		m.start(t)
		r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
		for range 1000 {
			mustStart(t, r, request())
			after(10 * time.Millisecond)
		}
		if n := len(m.streams()); n > 45 {
			t.Errorf("%d streams in 10 s, want at most 4 a second", n)
		}
	})
}

// Case I10: a monitor that accepts and closes each stream sees about ten tries in half a minute.
func TestStream_AcceptAndCloseIsMetWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.serve = refuseAfterFirst(m, status.Error(codes.Unavailable, "shutting down"))
		m.start(t)
		r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
		req := request()
		req.LeaseTTL = time.Hour
		mustStart(t, r, req)
		after(30 * time.Second)
		if n := len(m.streams()); n < 7 || n > 10 {
			t.Errorf("%d tries in 30 s, want 7 to 10", n)
		}
		// Renewals do not shorten it.
		before := len(m.streams())
		for range 300 {
			mustStart(t, r, req)
			after(100 * time.Millisecond)
		}
		if n := len(m.streams()) - before; n > 8 {
			t.Errorf("%d tries in 30 s of renewals, want at most 8", n)
		}
	})
}

// Cases H5 and I10: after a restart of the monitor the engines come back spread, and continue their sequence.
func TestStream_ReconnectsOfAFleetAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const fleet = 120
		m := &monitor{}
		restart := make(chan struct{})
		var restarted atomic.Bool
		m.serve = func(stream reportStream) error {
			if !restarted.Load() {
				m.receive(stream)
				<-restart
				return status.Error(codes.Unavailable, "restarting")
			}
			return m.drain(stream)
		}
		m.start(t)
		for range fleet {
			r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
			mustStart(t, r, request())
		}
		after(8 * time.Second)
		restarted.Store(true)
		close(restart)
		at := time.Now()
		after(1100 * time.Millisecond)
		opened := m.streams()
		if len(opened) != 2*fleet {
			t.Fatalf("%d streams, want %d: every engine is back within the freshness window", len(opened), 2*fleet)
		}
		buckets := map[int64]int{}
		for _, o := range opened[fleet:] {
			d := o.Sub(at)
			if d < backoffMin {
				t.Errorf("an engine came back after %v", d)
			}
			buckets[d.Milliseconds()/100]++
		}
		for b, n := range buckets {
			if n > fleet/3 {
				t.Errorf("%d of %d engines came back in the same tenth of a second (%d00 ms)", n, fleet, b)
			}
		}
		last := map[string]uint64{}
		for _, a := range m.arrivals() {
			if a.report.SequenceId <= last[a.report.SourceInstanceId] {
				t.Fatalf("sequence went from %d to %d", last[a.report.SourceInstanceId], a.report.SequenceId)
			}
			last[a.report.SourceInstanceId] = a.report.SequenceId
		}
		if len(last) != fleet {
			t.Errorf("%d source instances, want %d", len(last), fleet)
		}
	})
}

// A peer that vanished without closing is noticed by keepalive.
func TestStream_SilentlyDeadPeerIsRedialled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.start(t)
		frozen := make(chan struct{})
		var dials atomic.Int32
		r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				conn, err := m.listener.DialContext(ctx)
				if err == nil && dials.Add(1) == 1 {
					conn = &freezingConn{Conn: conn, frozen: frozen, closed: make(chan struct{})}
				}
				return conn, err
			}),
		}})
		req := request()
		req.LeaseTTL = time.Minute
		mustStart(t, r, req)
		after(2 * time.Second)
		close(frozen)
		at := time.Now()
		after(20 * time.Second)
		opened := m.streams()
		if len(opened) != 2 {
			t.Fatalf("%d streams, want a second one within 20 s", len(opened))
		}
		if d := opened[1].Sub(at); d > keepaliveTime+keepaliveTimeout+time.Second {
			t.Errorf("redialled after %v", d)
		}
	})
}

// freezingConn forwards nothing in either direction once frozen is closed, and says nothing of it.
type freezingConn struct {
	net.Conn
	frozen, closed chan struct{}
	once           sync.Once
}

func (c *freezingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case <-c.frozen:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (c *freezingConn) Write(b []byte) (int, error) {
	select {
	case <-c.frozen:
		return len(b), nil
	default:
		return c.Conn.Write(b)
	}
}

func (c *freezingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// Stopping does not wait for a peer that takes nothing, nor for a dial that does not end.
func TestRun_StopIsBounded(t *testing.T) {
	unread := func(stream reportStream) error { <-stream.Context().Done(); return nil }
	for _, tc := range []struct {
		name  string
		serve func(reportStream) error
		dial  func(m *monitor) grpc.DialOption
	}{
		{"streaming", nil, (*monitor).dial},
		{"a monitor that reads nothing", unread, (*monitor).dial},
		{"dialling a black hole", nil, func(*monitor) grpc.DialOption {
			return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() })
		}},
		{"a server that never speaks", nil, func(*monitor) grpc.DialOption {
			silent := bufconn.Listen(1 << 10)
			return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return silent.DialContext(ctx) })
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &monitor{serve: tc.serve}
				m.start(t)
				r, err := New(Options{Sample: wide, DialOptions: []grpc.DialOption{tc.dial(m)}})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- r.Run(ctx) }()
				synctest.Wait()
				mustStart(t, r, request())
				after(4500 * time.Millisecond)
				cancel()
				at := time.Now()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if d := time.Since(at); d > 100*time.Millisecond {
					t.Errorf("stopped after %v", d)
				}
				if s := r.Stats(); len(s.Targets) != 0 {
					t.Errorf("targets %+v are left", s.Targets)
				}
			})
		})
	}
}

func TestBackoff_DelaysStayWithinBoundsAndGrow(t *testing.T) {
	for range 1000 {
		var b backoff
		var sum time.Duration
		tries := 1
		for sum < 30*time.Second {
			d := b.next()
			if d < backoffMin || d > backoffMax {
				t.Fatalf("delay %v, want %v to %v", d, backoffMin, backoffMax)
			}
			sum += d
			if sum < 30*time.Second {
				tries++
			}
		}
		if tries > 10 {
			t.Fatalf("%d tries in 30 s, want at most 10", tries)
		}
		b.reset()
		if d := b.next(); d > time.Second {
			t.Fatalf("first delay after a reset is %v", d)
		}
	}
}
