package watch

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/test/bufconn"

	"github.com/loadmonitor/loadmonitor/load"
)

// wideFleet has about a kilobyte for each worker, so that frames are far larger than the windows of a stream.
func wideFleet(workers int) *fleet {
	f := newFleet()
	for i := range workers {
		widen(f, i, 0)
	}
	return f
}

// widen changes one worker of a wide fleet.
func widen(f *fleet, i int, n int64) {
	id := fmt.Sprintf("w%04d", i)
	f.report(id, n)
	f.put(id, func(ws *load.WorkerStatus) { ws.LastError = strings.Repeat("x", 1000) })
}

// Rule W3, case I2: a watcher that takes nothing is ended after a bounded time, from outside its blocked send.
func TestWatch_EndsAWatcherThatTakesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := wideFleet(200)
		src := newSource(f.publish())
		var logged strings.Builder
		svc := newService(t, Options{Source: src, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		c := serve(t, svc)
		stuck := open(t, c, withRanks)
		reading := watch(t, c, withRanks)
		synctest.Wait()
		f.report("w0000", 1)
		src.publish(f.publish())
		synctest.Wait()
		if reading.holds() != 2 {
			t.Errorf("the reading watcher holds version %d beside a stuck one", reading.holds())
		}
		wantMetrics(t, svc, map[string]float64{"watchers": 2})
		time.Sleep(9 * time.Second)
		synctest.Wait()
		wantMetrics(t, svc, map[string]float64{"watchers": 2, "watchers_stuck_total": 0})
		time.Sleep(11 * time.Second)
		synctest.Wait()
		wantMetrics(t, svc, map[string]float64{"watchers": 1, "watchers_stuck_total": 1})
		// Its status stands behind the bytes that it did not take.
		stuck.collect()
		wantStatus(t, stuck.err, codes.ResourceExhausted, load.ErrWatcherStuck.Error())
		if n := strings.Count(logged.String(), "\n"); n != 1 || !strings.Contains(logged.String(), "took nothing") {
			t.Errorf("logged: %s", logged.String())
		}
	})
}

// slowConn lets through a little at a time.
type slowConn struct {
	net.Conn
	bytes int
	every time.Duration
}

func (c *slowConn) Read(b []byte) (int, error) {
	time.Sleep(c.every)
	return c.Conn.Read(b[:min(len(b), c.bytes)])
}

// A large picture over a slow link takes longer than the time-out; what counts is that it is being taken.
func TestWatch_KeepsAWatcherThatIsSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := wideFleet(1500)
		src := newSource(f.publish())
		svc := newService(t, Options{Source: src, MaxFrameBytes: 512 << 10})
		lis := bufconn.Listen(16 << 10)
		serveOn(t, lis, svc)
		slow := false
		c := dialOn(t, lis, func(c net.Conn) net.Conn {
			slow = true
			return &slowConn{c, 16 << 10, time.Second}
		})
		begun := time.Now()
		w := watch(t, c, withRanks)
		for w.holds() == 0 && time.Since(begun) < time.Hour {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		got := w.news()
		if len(got) < 3 || !slow {
			t.Fatalf("%d frames arrived: %v", len(got), w.err)
		}
		if d := got[len(got)-1].at.Sub(got[0].at); d < 3*svc.sendTimeout {
			t.Errorf("the picture took only %v: the test is not slow", d)
		}
		w.see(func(r *receiver) {
			if len(r.workers) != 1500 {
				t.Errorf("%d workers arrived, want 1500", len(r.workers))
			}
		})
		wantMetrics(t, svc, map[string]float64{"watchers": 1, "watchers_stuck_total": 0})
	})
}

// Rule LIFE1: a watcher that blocks does not hold the shutdown up.
func TestWatch_ShutdownDoesNotWaitForAStuckWatcher(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := wideFleet(200)
		src := newSource(f.publish())
		svc := newService(t, Options{Source: src})
		w := open(t, serve(t, svc), withRanks)
		synctest.Wait()
		f.report("w0000", 1)
		src.publish(f.publish())
		synctest.Wait()
		svc.Shutdown()
		synctest.Wait()
		wantMetrics(t, svc, map[string]float64{"watchers": 0, "watchers_stuck_total": 0})
		w.collect()
		wantStatus(t, w.err, codes.Unavailable, load.ErrShuttingDown.Error())
	})
}

// frozenProxy forwards bytes until it is frozen: then it takes nothing more and closes nothing, like a host that lost
// its power.
type frozenProxy struct {
	lis net.Listener
	to  string
	wg  sync.WaitGroup

	mu     sync.Mutex
	frozen chan struct{} // closed by freeze
	conns  []net.Conn    // guarded by mu
}

func newFrozenProxy(t *testing.T, to string) *frozenProxy {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &frozenProxy{lis: lis, to: to, frozen: make(chan struct{})}
	p.wg.Go(func() {
		for {
			in, err := lis.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", p.to)
			if err != nil {
				in.Close()
				return
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			p.wg.Go(func() { p.copy(in, out) })
			p.wg.Go(func() { p.copy(out, in) })
		}
	})
	t.Cleanup(func() {
		lis.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *frozenProxy) copy(dst, src net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if err != nil {
			return
		}
		select {
		case <-p.frozen:
			return
		default:
		}
		if _, err := dst.Write(buf[:n]); err != nil {
			return
		}
	}
}

// Case I3 over real sockets: behind a dead network a watcher is ended although no packet ever says so.
func TestWatch_EndsAWatcherBehindADeadNetwork(t *testing.T) {
	t.Parallel()
	f := wideFleet(200)
	src := newSource(f.publish())
	svc := newService(t, Options{Source: src, SendTimeout: 200 * time.Millisecond})
	proxy := newFrozenProxy(t, serveTCP(t, svc))
	w := open(t, dial(t, proxy.lis.Addr().String()), withRanks)
	if _, err := w.stream.Recv(); err != nil {
		t.Fatal(err)
	}
	close(proxy.frozen)
	// Enough to fill every buffer on the way, one version after the other as the watcher takes them.
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for svc.counters.stuck.Load() == 0 {
		select {
		case <-tick.C:
			for i := range 200 {
				widen(f, i, 1)
			}
			src.publish(f.publish())
		case <-deadline:
			t.Fatal("the watcher was not ended")
		}
	}
	w.cancel()
	if _, err := w.stream.Recv(); err == io.EOF {
		t.Error("the stream ended as if all was well")
	}
}
