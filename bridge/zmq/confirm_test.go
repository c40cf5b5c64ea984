package zmq

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// confirmer answers questions about who is there, and remembers how many were put.
type confirmer struct {
	mu     sync.Mutex
	answer map[string]error
	block  map[string]chan struct{}
	asked  map[string]int
	open   map[string]int
	most   map[string]int // questions about one worker at a time
}

func newConfirmer() *confirmer {
	return &confirmer{
		answer: make(map[string]error), block: make(map[string]chan struct{}), asked: make(map[string]int), open: make(map[string]int),
		most: make(map[string]int),
	}
}

func (c *confirmer) confirm(ctx context.Context, worker string) error {
	c.mu.Lock()
	c.asked[worker]++
	c.open[worker]++
	c.most[worker] = max(c.most[worker], c.open[worker])
	block := c.block[worker]
	c.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[worker]--
	return c.answer[worker]
}

func (c *confirmer) set(worker string, answer error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer[worker] = answer
}

func (c *confirmer) questions(worker string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[worker]
}

// Nothing counts before the engine behind the address was confirmed, and a worker whose confirmation takes long holds up
// no other.
func TestBridge_DataCountsOnceConfirmed(t *testing.T) {
	t.Parallel()
	ctx, s, c := testContext(t), newRecorder(), newConfirmer()
	slow := make(chan struct{})
	c.block["slow"] = slow
	o := steady(s)
	o.Owners = 1
	o.Confirm = c.confirm
	var targets []Target
	for r := range int32(4) {
		targets = append(targets, target("slow", r, publish(t, ctx, anyPort, running(1)).endpoint))
	}
	targets = append(targets, target("fast", 0, publish(t, ctx, anyPort, running(2)).endpoint))
	b, _ := start(t, o, targets...)
	s.awaitReports(t, "fast", 0, 20)
	s.await(t, "unconfirmed messages", func() bool { return metric(t, b, "zmq_messages_unconfirmed_total") > 20 })
	for r := range int32(4) {
		if n := s.count("slow", r); n != 0 {
			t.Errorf("rank %d: %d messages before it was confirmed", r, n)
		}
	}
	if n := c.questions("slow"); n != 1 {
		t.Errorf("%d questions about one worker, want 1", n)
	}
	close(slow)
	for r := range int32(4) {
		s.awaitReports(t, "slow", r, 2)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most["slow"] != 1 || c.asked["slow"] > 4 {
		t.Errorf("%d questions, %d at a time: want few, one at a time", c.asked["slow"], c.most["slow"])
	}
}

// The message that was waiting is handed on when its engine is confirmed: the next may be a long step away.
func TestBridge_WaitingMessageIsNotLost(t *testing.T) {
	t.Parallel()
	ctx, s, c := testContext(t), newRecorder(), newConfirmer()
	block := make(chan struct{})
	c.block["w"] = block
	o := steady(s)
	o.Confirm = c.confirm
	p := socket(t, ctx, anyPort)
	b, _ := start(t, o, target("w", 0, p.Endpoint()))
	var n int64
	s.await(t, "the question", func() bool {
		if err := p.Send("load", n, running(n)); err != nil {
			t.Fatal(err)
		}
		n++
		return c.questions("w") == 1
	})
	sent := time.Now()
	if err := p.Send("load", n, running(7)); err != nil {
		t.Fatal(err)
	}
	close(block)
	s.await(t, "it, or that it grew too old on a busy machine", func() bool {
		return len(s.reports[targetKey{"w", 0}]) > 0 ||
			time.Since(sent) > maxHeld && metric(t, b, "zmq_messages_unconfirmed_total") == float64(n+1)
	})
}

// An engine that is another one is never shown, and says why; when it is the right one again its data counts.
func TestBridge_UnconfirmedEngineIsNotShown(t *testing.T) {
	t.Parallel()
	ctx, s, c := testContext(t), newRecorder(), newConfirmer()
	c.set("w", errors.New("it serves model m2"))
	o := steady(s)
	o.Confirm = c.confirm
	e := publish(t, ctx, anyPort, running(66))
	b, _ := start(t, o, target("w", 0, e.endpoint))
	s.awaitNote(t, "w", 0, "it is not confirmed which engine is at "+e.endpoint[len("tcp://"):]+": it serves model m2")
	s.await(t, "it to be asked again and dialled again", func() bool {
		return metric(t, b, "zmq_confirm_failures_total") >= maxRefusals && metric(t, b, "zmq_redials_total") >= 1
	})
	if n := s.count("w", 0); n != 0 {
		t.Errorf("%d messages of another engine", n)
	}
	c.set("w", nil)
	s.awaitReports(t, "w", 0, 1)
	s.awaitNote(t, "w", 0, "")
}

// Every connection is confirmed, and what was configured by hand never is.
func TestBridge_EveryConnectionIsConfirmed(t *testing.T) {
	t.Parallel()
	ctx, s, c := testContext(t), newRecorder(), newConfirmer()
	o := steady(s)
	o.Confirm = c.confirm
	e := publish(t, ctx, anyPort, running(1))
	byHand := target("hand", 0, publish(t, ctx, anyPort, running(1)).endpoint)
	byHand.Trusted = true
	start(t, o, target("w", 0, e.endpoint), byHand)
	s.awaitReports(t, "w", 0, 2)
	if n := c.questions("w"); n != 1 {
		t.Errorf("%d questions about one connection", n)
	}
	// Another engine takes the port.
	e.stop()
	c.set("w", errors.New("it serves model m2"))
	publish(t, ctx, e.endpoint, running(66))
	s.awaitNote(t, "w", 0, "model m2")
	for _, r := range s.awaitReports(t, "w", 0, 1) {
		if runningOf(&r) == 66 {
			t.Fatal("a message of another engine")
		}
	}
	s.awaitReports(t, "hand", 0, 2)
	if n := c.questions("hand"); n != 0 {
		t.Errorf("%d questions about what was configured by hand", n)
	}
}

// Rule SEQ2: a sequence that goes back on a living connection counts at once, and the engine is asked about again.
func TestBridge_SequenceGoingBackIsAskedAbout(t *testing.T) {
	t.Parallel()
	ctx, s, c := testContext(t), newRecorder(), newConfirmer()
	o := steady(s)
	o.Confirm = c.confirm
	p := socket(t, ctx, anyPort)
	b, _ := start(t, o, target("w", 0, p.Endpoint()))
	meet(t, p, s, "w", 0)
	for _, sequence := range []int64{5000, 0} {
		if err := p.Send("load", sequence, running(sequence)); err != nil {
			t.Fatal(err)
		}
		s.await(t, "the message", func() bool {
			got := s.reports[targetKey{"w", 0}]
			return got[len(got)-1].Sequence == sequence && runningOf(&got[len(got)-1]) == sequence
		})
	}
	s.await(t, "a second question", func() bool { return c.questions("w") == 2 })
	if got := metric(t, b, "zmq_publisher_restarts_total"); got != 1 {
		t.Errorf("%v restarts, want 1", got)
	}
}

// Options.Silent is told of a worker, not of every rank and every dial.
func TestBridge_SilentIsToldSeldom(t *testing.T) {
	t.Parallel()
	s := newRecorder()
	var told atomic.Int64
	o := steady(s)
	o.RetryMax = time.Millisecond
	o.Silent = func(string) { told.Add(1) }
	var targets []Target
	for r := range int32(8) {
		targets = append(targets, target("w", r, endpointOf(freePort(t))))
	}
	began := time.Now()
	b, _ := start(t, o, targets...)
	s.await(t, "many failures", func() bool { return metric(t, b, "zmq_dial_failures_total") >= 50 })
	if n, most := told.Load(), int64(time.Since(began)/silentEvery)+1; n < 1 || n > most {
		t.Errorf("told %d times, want 1 to %d", n, most)
	}
}
