package zmq

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// names that a test controls.
type zone struct {
	mu    sync.Mutex
	addrs map[string][]netip.Addr
	stuck map[string]chan struct{} // no answer until it is closed, or the question is taken back
	asked map[string]int
	hangs int // look-ups that have no answer
}

func newZone() *zone {
	return &zone{addrs: make(map[string][]netip.Addr), stuck: make(map[string]chan struct{}), asked: make(map[string]int)}
}

func (z *zone) point(host string, addrs ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.addrs[host] = nil
	for _, a := range addrs {
		z.addrs[host] = append(z.addrs[host], netip.MustParseAddr(a))
	}
}

func (z *zone) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	z.mu.Lock()
	z.asked[host]++
	addrs, stuck := z.addrs[host], z.stuck[host]
	z.mu.Unlock()
	if stuck != nil {
		return nil, z.hang(ctx, stuck)
	}
	if addrs == nil {
		return nil, errors.New("no such host")
	}
	return addrs, nil
}

// hang keeps to no deadline, as a resolver may that waits in the system.
func (z *zone) hang(ctx context.Context, stuck chan struct{}) error {
	z.mu.Lock()
	z.hangs++
	z.mu.Unlock()
	<-ctx.Done()
	if ctx.Err() == context.DeadlineExceeded {
		<-stuck
	}
	z.mu.Lock()
	z.hangs--
	z.mu.Unlock()
	return ctx.Err()
}

func (z *zone) hanging() int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.hangs
}

func (z *zone) lookUps(host string) int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.asked[host]
}

func named(worker string, rank int32, host, endpoint string) Target {
	t := target(worker, rank, endpoint)
	t.Host = host
	return t
}

// Case L3: a name whose server never answers delays nobody, says so, and goes at once when it is removed.
func TestBridge_SlowNameDelaysNobody(t *testing.T) {
	t.Parallel()
	c, s, z := testContext(t), newRecorder(), newZone()
	never := make(chan struct{})
	z.stuck["never.example"] = never
	z.point("alias.example", testHost)
	o := steady(s)
	o.Resolve = z.resolve
	var targets []Target
	for r := range int32(20) {
		targets = append(targets, target("good", r, publish(t, c, anyPort, running(1)).endpoint))
	}
	b, stop := start(t, o, targets...)
	answer := sync.OnceFunc(func() { close(never) })
	t.Cleanup(answer)
	for r := range int32(20) {
		s.awaitReports(t, "good", r, 1)
	}
	bad := named("bad", 0, "never.example", endpointOf(1))
	alias := targets[0]
	alias.WorkerID, alias.Host = "alias", "alias.example"
	b.SetTargets(append(slices.Clone(targets), bad))
	s.await(t, "the name to be looked up", func() bool { return z.hanging() == 1 })
	late := target("late", 0, publish(t, c, anyPort, running(1)).endpoint)
	b.SetTargets(append(slices.Clone(targets), bad, alias, late))
	s.awaitReports(t, "alias", 0, 1)
	s.awaitReports(t, "late", 0, 1)
	for range 10 {
		for r := range int32(20) {
			s.awaitMore(t, "good", r)
		}
	}
	if z.lookUps("never.example") != 1 || z.hanging() != 1 {
		t.Error("the look-up ended while the others were awaited")
	}
	b.SetTargets(targets)
	s.await(t, "the bad one to be gone", func() bool { return metric(t, b, "zmq_targets") == 20 })
	answer() // of no use before its deadline
	began := time.Now()
	stop()
	if took := time.Since(began); took > resolveTimeout/2 {
		t.Errorf("Run took %v to return", took)
	}
}

func TestBridge_NameErrorsAreShown(t *testing.T) {
	t.Parallel()
	s, z := newRecorder(), newZone()
	z.point("empty.example")
	o := steady(s)
	o.Resolve = z.resolve
	b, _ := start(t, o, named("w", 0, "none.example", endpointOf(1)), named("w", 1, "empty.example", endpointOf(1)))
	s.awaitNote(t, "w", 0, `name "none.example" does not resolve: no such host`)
	s.awaitNote(t, "w", 1, `name "empty.example" does not resolve`)
	if metric(t, b, "zmq_resolve_failures_total") < 2 {
		t.Error("failures are not counted")
	}
}

// Case L4: the name moves while another engine takes the old address. Data comes from the new one, and nothing of the
// other engine is ever shown.
func TestBridge_NameIsFollowed(t *testing.T) {
	t.Parallel()
	c, s, z, confirm := testContext(t), newRecorder(), newZone(), newConfirmer()
	z.point("pod.example", "127.0.0.2")
	o := steady(s)
	o.Resolve = z.resolve
	// The engine's HTTP address moves with the name: what answers there is m2 until the record has changed.
	var mu sync.Mutex
	stranger := false
	o.Confirm = func(ctx context.Context, worker string) error {
		addrs, err := z.resolve(ctx, "pod.example")
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if stranger && addrs[0].String() == "127.0.0.2" {
			return errors.New("it serves model m2")
		}
		return confirm.confirm(ctx, worker)
	}
	old := publish(t, c, "tcp://127.0.0.2:*", running(1))
	start(t, o, named("w", 0, "pod.example", old.endpoint))
	s.awaitReports(t, "w", 0, 2)
	_, port := split(old.endpoint)
	mu.Lock()
	stranger = true
	mu.Unlock()
	old.stop()
	publish(t, c, strings.Replace(old.endpoint, "127.0.0.2", "127.0.0.3", 1), running(3))
	publish(t, c, old.endpoint, running(66))
	s.awaitNote(t, "w", 0, "model m2")
	z.point("pod.example", "127.0.0.3")
	s.await(t, "data from where the name points to", func() bool {
		got := s.reports[targetKey{"w", 0}]
		return runningOf(&got[len(got)-1]) == 3
	})
	for _, r := range s.awaitReports(t, "w", 0, 1) {
		if runningOf(&r) == 66 {
			t.Fatalf("the other engine at 127.0.0.2:%d was shown", port)
		}
	}
}

// The engine that was asked may be another one than the connection leads to, if the name moved in between: such a
// connection is given up although the answer was right.
func TestBridge_ConfirmationSpeaksForTheAddressOfTheName(t *testing.T) {
	t.Parallel()
	c, s, z, confirm := testContext(t), newRecorder(), newZone(), newConfirmer()
	z.point("pod.example", "127.0.0.2")
	block := make(chan struct{})
	confirm.block["w"] = block
	o := steady(s)
	o.Resolve, o.Confirm = z.resolve, confirm.confirm
	stranger := publish(t, c, "tcp://127.0.0.2:*", running(66))
	b, _ := start(t, o, named("w", 0, "pod.example", stranger.endpoint))
	s.await(t, "the question", func() bool { return confirm.questions("w") == 1 })
	publish(t, c, strings.Replace(stranger.endpoint, "127.0.0.2", "127.0.0.3", 1), running(3))
	z.point("pod.example", "127.0.0.3")
	close(block)
	for _, r := range s.awaitReports(t, "w", 0, 3) {
		if runningOf(&r) != 3 {
			t.Fatalf("running %d of the other engine was shown", runningOf(&r))
		}
	}
	if got := metric(t, b, "zmq_moves_total"); got != 1 {
		t.Errorf("%v moves, want 1", got)
	}
}

// A connection that goes on although its name points elsewhere is given up after a second look.
func TestBridge_MovedNameIsNoticedWithoutTrouble(t *testing.T) {
	t.Parallel()
	c, s, z := testContext(t), newRecorder(), newZone()
	z.point("pod.example", "127.0.0.2")
	o := steady(s)
	o.Resolve = z.resolve
	old := publish(t, c, "tcp://127.0.0.2:*", running(1))
	publish(t, c, strings.Replace(old.endpoint, "127.0.0.2", "127.0.0.3", 1), running(3))
	b, _ := start(t, o, named("w", 0, "pod.example", old.endpoint))
	s.awaitReports(t, "w", 0, 2)
	began := time.Now()
	z.point("pod.example", "127.0.0.3")
	s.await(t, "data from where the name points to", func() bool {
		got := s.reports[targetKey{"w", 0}]
		return runningOf(&got[len(got)-1]) == 3
	})
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("followed after %v", took)
	}
	if n := z.lookUps("pod.example"); n > 6 || metric(t, b, "zmq_moves_total") != 1 {
		t.Errorf("%d look-ups, %v moves", n, metric(t, b, "zmq_moves_total"))
	}
}

// Case L1: IPv6 works in every spelling, and of several addresses the one that answers is taken.
func TestBridge_AddressForms(t *testing.T) {
	t.Parallel()
	c, s, z := testContext(t), newRecorder(), newZone()
	z.point("dual.example", "127.0.0.9", "::1")
	z.point("mapped.example", "::ffff:127.0.0.1")
	o := steady(s)
	o.Resolve = z.resolve
	six := publish(t, c, "tcp://[::1]:*", running(6))
	four := publish(t, c, "tcp://127.0.0.1:*", running(4))
	var targets []Target
	for i, h := range []string{"::1", "[::1]", "0:0:0:0:0:0:0:1", "[::ffff:127.0.0.1]", "dual.example", "mapped.example"} {
		from := six
		if strings.Contains(h, "127") || h == "mapped.example" {
			from = four
		}
		targets = append(targets, named("w", int32(i), h, from.endpoint))
	}
	start(t, o, targets...)
	for i := range targets {
		s.awaitReports(t, "w", int32(i), 1)
	}
}
