package zmq

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// dialClass says how much hope there is. Dials with less of it are paced, and each class has its own dials under way, so
// that black holes and silent fleets hold up nobody who may answer.
type dialClass uint8

const (
	classFresh  dialClass = iota // no reason to doubt
	classSilent                  // the connection is open and silent: most likely the engine is
	classDead                    // failed several times in a row
	numClasses
)

const (
	// deadAfter dials that failed in a row make a rank dead.
	deadAfter = 3
	retryMin  = 250 * time.Millisecond
)

// Dials without much hope are let go in rounds: one by one they would wake a process that has nothing else to do for each.
const roundEvery = 500 * time.Millisecond

// perRound returns the bounds of the dials of each class in one round; 0: no bound. A dial of a dead port costs some tens
// of microseconds, one of a silent publisher a new socket on both sides, and more the more sockets there are (see
// Bridge.heartbeat). Both together stay within a few percent of a CPU whatever the size of the fleet.
func perRound(ranks int) [numClasses]int {
	return [numClasses]int{classSilent: min(max(8192/max(ranks, 1), 1), 16), classDead: 200}
}

// dial is the wish to find a rank's publisher.
type dial struct {
	rank  *rank
	class dialClass
	due   instant
	addrs []netip.Addr // what the host stands for

	// guarded by dialer.mu
	begun     bool // it waits for its time and its round no more
	abandoned bool
}

// dialer finds out where publishers answer: it looks names up, connects, and waits for the publisher's greeting, all of
// it outside libzmq, which would neither say why it failed nor look a name up twice. Only what answers gets a socket.
type dialer struct {
	b    *Bridge
	wake chan struct{} // one slot: there may be something to do

	mu sync.Mutex
	// guarded by mu
	later  dialHeap            // not due yet
	due    [numClasses][]*dial // wait for their pace
	ready  [numClasses][]*dial // have addresses and wait for a slot
	free   [numClasses]int     // slots
	left   [numClasses]int     // dials that this round has left
	round  instant             // when the next begins
	names  map[string]*name    // of all targets that have one
	queue  [2][]*name          // to be looked up: those that answered last time, and those that did not
	lookUp [2]int              // slots

	refreshAt instant // when to see which names are due
}

func newDialer(b *Bridge) *dialer {
	return &dialer{b: b, wake: make(chan struct{}, 1), names: make(map[string]*name), lookUp: [2]int{64, 16}}
}

// slots sets how many dials of one class may be under way. It is called before run.
func (d *dialer) slots(n int) {
	for class := range d.free {
		d.free[class] = n
	}
	for i := range d.lookUp {
		d.lookUp[i] = min(d.lookUp[i], n)
	}
}

// add takes a wish. The owner of the rank hears of the outcome.
func (d *dialer) add(want *dial) {
	d.mu.Lock()
	heap.Push(&d.later, want)
	d.mu.Unlock()
	d.look()
}

// abandon takes a wish back, unless it is being fulfilled already. Nobody hears of the outcome then.
func (d *dialer) abandon(want *dial) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	want.abandoned = !want.begun
	return want.abandoned
}

func (d *dialer) look() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// run goes on until ctx ends. What it started then ends by itself, within the dial timeout.
func (d *dialer) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		start, next := d.step(d.b.now())
		for _, f := range start {
			d.b.running.Go(func() { f(ctx) })
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-d.wake:
		}
	}
}

// step moves every dial as far as it may go, and returns what is to be started and when to look again.
func (d *dialer) step(now instant) (start []func(context.Context), next time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	next = time.Hour
	for len(d.later) > 0 && d.later[0].due <= now {
		want := heap.Pop(&d.later).(*dial)
		d.due[want.class] = append(d.due[want.class], want)
	}
	if len(d.later) > 0 {
		next = d.later[0].due - now
	}
	if wait := d.paceLocked(now); wait > 0 {
		next = min(next, wait)
	}
	if wait := d.refreshLocked(now); wait > 0 {
		next = min(next, wait)
	}
	for class := range d.queue {
		for len(d.queue[class]) > 0 && d.lookUp[class] > 0 {
			n := d.queue[class][0]
			d.queue[class] = d.queue[class][1:]
			d.lookUp[class]--
			start = append(start, func(ctx context.Context) { d.lookUpName(ctx, n, class) })
		}
	}
	for class := range d.ready {
		for len(d.ready[class]) > 0 && d.free[class] > 0 {
			want := d.ready[class][0]
			d.ready[class] = d.ready[class][1:]
			if want.rank.removed.Load() {
				continue
			}
			d.free[class]--
			start = append(start, func(ctx context.Context) { d.try(ctx, want) })
		}
	}
	return start, next
}

// paceLocked lets dials that are due go on as fast as their class may, and returns how long the next has to wait; 0: none
// waits.
func (d *dialer) paceLocked(now instant) (wait time.Duration) {
	bounds := perRound(int(d.b.counts.targets.Load()))
	if now >= d.round {
		d.round = now + roundEvery
		d.left = bounds
	}
	for class, bound := range bounds {
		for len(d.due[class]) > 0 && (bound == 0 || d.left[class] > 0) {
			want := d.due[class][0]
			d.due[class] = d.due[class][1:]
			if want.abandoned || want.rank.removed.Load() {
				continue
			}
			want.begun = true
			d.left[class]--
			if a, is := literal(want.rank.target.Host); is {
				want.addrs = []netip.Addr{a}
				d.ready[want.class] = append(d.ready[want.class], want)
			} else {
				d.joinLocked(want)
			}
		}
		if len(d.due[class]) > 0 {
			wait = d.round - now
		}
	}
	return wait
}

// maxAddrs of one name are tried.
const maxAddrs = 4

// try dials the addresses one after the other until a publisher greets.
func (d *dialer) try(ctx context.Context, want *dial) {
	r := want.rank
	var (
		addr netip.Addr
		err  error
	)
	for _, addr = range want.addrs[:min(len(want.addrs), maxAddrs)] {
		if err = d.b.greet(ctx, &r.target, addr); err == nil || ctx.Err() != nil {
			break
		}
	}
	d.mu.Lock()
	d.free[want.class]++
	d.mu.Unlock()
	d.look()
	d.answer(want, addr, err)
}

func (d *dialer) answer(want *dial, addr netip.Addr, err error) {
	o := want.rank.owner
	o.post(func() { o.dialled(want.rank, addr, err) })
}

// backoff returns how long to wait after so many failures in a row: it doubles up to the ceiling, and a quarter is chance,
// so that ranks that failed together do not come back together.
func (b *Bridge) backoff(fails int) time.Duration {
	d := min(retryMin<<min(max(fails-1, 0), 16), b.options.RetryMax)
	return d - time.Duration(rand.Int64N(int64(d)/4+1))
}

type dialHeap []*dial

func (h dialHeap) Len() int           { return len(h) }
func (h dialHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h dialHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dialHeap) Push(x any)        { *h = append(*h, x.(*dial)) }
func (h *dialHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return x
}
