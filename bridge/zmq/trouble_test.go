package zmq

import (
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loadmonitor/loadmonitor/internal/proxy"
	"github.com/loadmonitor/loadmonitor/load"
)

// freePort returns a port on which nobody listens.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", testHost+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func endpointOf(port int) string {
	return "tcp://" + net.JoinHostPort(testHost, strconv.Itoa(port))
}

// A publisher that starts long after it was discovered, with the options of production: dials are backed off to their
// ceiling by then, and its data is there within 5 s.
func TestBridge_LatePublisherIsFound(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	endpoint := endpointOf(freePort(t))
	b, _ := start(t, Options{Sink: s}, target("w", 0, endpoint))
	s.awaitNote(t, "w", 0, "refuses connections: no publisher listens there")
	s.await(t, "the backoff to reach its ceiling", func() bool { return metric(t, b, "zmq_dial_failures_total") >= 5 })
	publish(t, c, endpoint, running(7))
	started := time.Now()
	s.awaitReports(t, "w", 0, 1)
	if took := time.Since(started); took > 5*time.Second {
		t.Errorf("found after %v", took)
	}
	s.awaitNote(t, "w", 0, "")
}

// A publisher that restarts at its address is followed: a new connection and a new stream.
func TestBridge_RestartedPublisherIsFollowed(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	e := publish(t, c, anyPort, running(1))
	b, _ := start(t, steady(s), target("w", 0, e.endpoint))
	s.awaitReports(t, "w", 0, 3)
	e.stop()
	s.awaitNote(t, "w", 0, "refuses connections")
	publish(t, c, e.endpoint, running(90))
	s.await(t, "the new publisher", func() bool {
		got := s.reports[targetKey{"w", 0}]
		return runningOf(&got[len(got)-1]) == 90
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended < 1 || len(s.streams) != 2 || metric(t, b, "zmq_redials_total") < 1 {
		t.Errorf("%d streams, %d ended, %v redials", len(s.streams), s.ended, metric(t, b, "zmq_redials_total"))
	}
}

// The end of a connection is noticed by itself, long before silence would tell.
func TestBridge_EndOfConnectionIsNoticed(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	e := publish(t, c, anyPort, running(1))
	o := quick(s)
	o.Silence = time.Hour
	b, _ := start(t, o, target("w", 0, e.endpoint))
	s.awaitReports(t, "w", 0, 3)
	e.stop()
	s.awaitNoted(t, "w", 0, "ended the connection")
	if got := metric(t, b, "zmq_losses_total"); got != 1 {
		t.Errorf("%v losses, want 1", got)
	}
	publish(t, c, e.endpoint, running(2))
	s.awaitMore(t, "w", 0)
}

// Case F1: behind a frozen link nothing says that the peer is gone. Silence does, and another publisher at the address is
// found.
func TestBridge_FrozenLinkIsRedialled(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	old := publish(t, c, anyPort, running(1))
	_, port := split(old.endpoint)
	p := proxy.Start(t, strings.TrimPrefix(endpointOf(port), "tcp://"))
	var silent atomic.Int64
	o := quick(s)
	o.Silent = func(worker string) {
		if worker == "w" {
			silent.Add(1)
		}
	}
	b, _ := start(t, o, target("w", 0, "tcp://"+p.Addr()))
	s.awaitReports(t, "w", 0, 3)
	p.Freeze()
	s.awaitNote(t, "w", 0, "sends no ZMTP greeting")
	if silent.Load() == 0 || metric(t, b, "zmq_silences_total") == 0 {
		t.Errorf("told of silence %d times, counted %v", silent.Load(), metric(t, b, "zmq_silences_total"))
	}
	other := publish(t, c, anyPort, running(2))
	_, port = split(other.endpoint)
	p.Retarget(strings.TrimPrefix(endpointOf(port), "tcp://"))
	old.stop()
	p.Cut()
	p.Unfreeze()
	s.await(t, "the new publisher", func() bool {
		got := s.reports[targetKey{"w", 0}]
		return runningOf(&got[len(got)-1]) == 2
	})
}

// A publisher that has nothing to say keeps its connection for longer and longer, and is not dialled in a loop.
func TestBridge_SilentPublisherIsLeftAlone(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	p := socket(t, c, anyPort)
	o := quick(s)
	o.Silence = 50 * time.Millisecond
	b, _ := start(t, o, target("w", 0, p.Endpoint()))
	s.awaitNote(t, "w", 0, "no load message")
	s.await(t, "three silences", func() bool { return metric(t, b, "zmq_silences_total") >= 3 })
	b.mu.Lock()
	r := b.ranks[targetKey{"w", 0}]
	b.mu.Unlock()
	got := make(chan time.Duration)
	r.owner.post(func() { got <- r.owner.patience(&conn{rank: r}) })
	if p := <-got; p < 400*time.Millisecond {
		t.Errorf("patience is %v after three silences of 50ms", p)
	}
}

// Case F8: SYNs are dropped, so nothing answers at all, and then the port accepts.
func TestBridge_DroppedSYNsAreTriedAgain(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	port := freePort(t)
	unblock := blackHole(t, port)
	start(t, steady(s), target("w", 0, endpointOf(port)))
	s.awaitNote(t, "w", 0, "does not answer in 300ms")
	unblock()
	publish(t, c, endpointOf(port), running(1))
	s.awaitReports(t, "w", 0, 1)
}

// blackHole listens on a port with a full queue, which makes the kernel drop further SYNs.
func blackHole(t testing.TB, port int) (unblock func()) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	address := &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 77}}
	inherit(t, func() (struct{}, error) { return struct{}{}, unix.Bind(fd, address) })
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	fds := []int{fd}
	for range 4 {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		// A reset instead of a FIN, so that the port is free at once.
		_ = unix.SetsockoptLinger(s, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Connect(s, address)
		fds = append(fds, s)
	}
	unblock = sync.OnceFunc(func() {
		for i := len(fds) - 1; i >= 0; i-- {
			unix.Close(fds[i])
		}
	})
	t.Cleanup(unblock)
	return unblock
}

// Case F11: one failure to connect anew is not for ever.
func TestBridge_FailedRedialIsTriedAgain(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	e := publish(t, c, anyPort, running(1))
	_, port := split(e.endpoint)
	start(t, steady(s), target("w", 0, e.endpoint))
	s.awaitReports(t, "w", 0, 1)
	e.stop()
	l := inherit(t, func() (net.Listener, error) {
		return net.Listen("tcp", strings.TrimPrefix(endpointOf(port), "tcp://"))
	})
	garbled := make(chan struct{})
	go func() {
		defer close(garbled)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte("\x00\x01garbage that is no greeting at all, and then the end"))
			conn.Close()
		}
	}()
	s.awaitNoted(t, "w", 0, "does not speak ZMTP")
	l.Close()
	<-garbled
	publish(t, c, e.endpoint, running(2))
	s.await(t, "the publisher that came back", func() bool {
		got := s.reports[targetKey{"w", 0}]
		return runningOf(&got[len(got)-1]) == 2
	})
}

// Case F3: ranks that get no socket say so, and a socket that comes free is used.
func TestBridge_SocketBoundIsShared(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	e := publish(t, c, anyPort, running(1))
	var targets []Target
	for r := range int32(8) {
		targets = append(targets, target("w", r, e.endpoint))
	}
	o := steady(s)
	o.MaxSockets = 5
	b, _ := start(t, o, targets[:5]...)
	for r := range int32(5) {
		s.awaitReports(t, "w", r, 1)
	}
	b.SetTargets(targets)
	for r := int32(5); r < 8; r++ {
		s.awaitNote(t, "w", r, "too many open files: 8 ranks need a socket")
	}
	if got := metric(t, b, "zmq_ranks_without_socket"); got != 3 {
		t.Errorf("%v ranks without a socket, want 3", got)
	}
	b.SetTargets(targets[2:])
	got := 0
	for r := int32(5); r < 8; r++ {
		if s.count("w", r) > 0 {
			got++
		}
	}
	s.await(t, "two of the three to get a socket", func() bool {
		n := 0
		for r := int32(5); r < 8; r++ {
			if len(s.reports[targetKey{"w", r}]) > 0 {
				n++
			}
		}
		return n == 2 && metric(t, b, "zmq_ranks_without_socket") == 1
	})
	b.SetTargets(targets[3:])
	for r := int32(5); r < 8; r++ {
		s.awaitReports(t, "w", r, 1)
	}
}

// Case F4: signals and collections interrupt nothing and are not logged.
func TestBridge_SignalsInterruptNothing(t *testing.T) {
	c, s := testContext(t), newRecorder()
	var targets []Target
	var engines []*engine
	for range 4 {
		engines = append(engines, publish(t, c, anyPort, running(1)))
	}
	for r := range int32(64) {
		targets = append(targets, target("w", r, engines[r%4].endpoint))
	}
	var out safeBuffer
	b, _ := start(t, Options{Sink: s, Logger: newTestLogger(&out)}, targets...)
	for r := range int32(64) {
		s.awaitReports(t, "w", r, 1)
	}
	before := out.String() // the start
	stop := make(chan struct{})
	var noise sync.WaitGroup
	noise.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})
	noise.Go(func() {
		tick := time.NewTicker(500 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				_ = syscall.Kill(os.Getpid(), syscall.SIGURG)
				_ = syscall.Kill(os.Getpid(), syscall.SIGWINCH)
			}
		}
	})
	for range 5 {
		for r := range int32(64) {
			s.awaitMore(t, "w", r)
		}
	}
	close(stop)
	noise.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.history) > 0 || s.ended > 0 || metric(t, b, "zmq_connects_total") != 64 {
		t.Errorf("notes %v, %d streams ended, %v connections", s.history, s.ended, metric(t, b, "zmq_connects_total"))
	}
	if logged := out.String(); logged != before {
		t.Errorf("logged %s", logged[len(before):])
	}
}

// Case F9: ranks come and go while all deliver; nothing aborts and nothing is left.
func TestBridge_TargetsComeAndGo(t *testing.T) {
	c, s := testContext(t), newRecorder()
	var targets []Target
	var endpoints []string
	for range 4 {
		endpoints = append(endpoints, publish(t, c, anyPort, running(1)).endpoint)
	}
	for i := range int32(64) {
		targets = append(targets, target("w"+string(rune('a'+i/8)), i%8, endpoints[i%4]))
	}
	freePort(t) // the runtime opens its own poller with the first use of the network
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	b, stop := start(t, steady(s), targets...)
	for round := range 40 {
		s.awaitMore(t, "wa", 0)
		b.SetTargets(targets[:8+(round*13)%56])
		s.awaitMore(t, "wa", 1)
		b.SetTargets(targets)
	}
	for i := range int32(64) {
		s.awaitMore(t, "w"+string(rune('a'+i/8)), i%8)
	}
	b.SetTargets(targets[:16])
	stop()
	awaitBase(t, s, goroutines, files)
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if !s.released[st] {
			t.Errorf("stream of %v was not released", s.streams[st])
		}
	}
}

// Rule LIFE4 and case K8: a worker in trouble is one line in the log, however many ranks and dials.
func TestBridge_TroubleIsLoggedOnce(t *testing.T) {
	t.Parallel()
	s := newRecorder()
	var out safeBuffer
	o := steady(s)
	o.Logger = newTestLogger(&out)
	o.RetryMax = time.Millisecond
	var targets []Target
	for r := range int32(8) {
		targets = append(targets, target("w", r, endpointOf(freePort(t))))
	}
	b, _ := start(t, o, targets...)
	s.await(t, "many failures", func() bool { return metric(t, b, "zmq_dial_failures_total") >= 100 })
	if n := strings.Count(out.String(), "\n"); n != 1 || !strings.Contains(out.String(), "worker=w") {
		t.Errorf("%d lines: %s", n, out.String())
	}
}

// The stream of a rank ends only with its socket, and a note never outlives the trouble.
func TestBridge_NotesAreTakenBack(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	s.refuse = func(r *load.RankReport) error { return nil }
	e := publish(t, c, anyPort, []byte("\x2a"))
	start(t, steady(s), target("w", 0, e.endpoint))
	s.awaitNote(t, "w", 0, "malformed: payload: is neither an array nor a map")
	e.set(running(1))
	s.awaitNote(t, "w", 0, "")
	s.awaitReports(t, "w", 0, 1)
}
