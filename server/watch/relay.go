package watch

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// relay passes each publication on to the watchers group by group, one interval of the pace from first to last, so that
// a thousand of them do not wake at once (rule W8):
//
//	publication ─► relay ─► gate 0 ─► watchers 0, 512, 1024 …
//	                  │ a step, for as many gates as fall into it
//	                  └───► gate 1 ─► watchers 256, 768 …
//
// A gate opens after the publication can be read. Those who come through look at what the relay shows, which is renewed a few
// times in a round: showing each group what is newest would make frames of its own for each, of which large ones cost more
// than their age. While the relay goes round, further publications make it go round once more, so nobody misses one. Where
// the pace is no limit watchers wait for the publication itself.
type relay struct {
	// Immutable.
	source Source
	pace   *pace

	gates [1 << gateBits]gate
	shown atomic.Pointer[load.Publication] // nil: nothing yet
	took  atomic.Int64                     // nanoseconds of the last round

	mu       sync.Mutex
	watchers uint64        // guarded by mu
	drawn    uint16        // guarded by mu; gates given out
	stop     chan struct{} // guarded by mu; ends the goroutine that there is while there are watchers
}

// gateBits says how many gates there are: 1,000 watchers with large frames wake in twos, so that a report waits behind a few
// sends only.
const gateBits = 9

// phases is how often in a round what is shown is renewed.
const phases = 4

// relayStep is the least time planned between two openings: waking a few watchers together costs much less than waking each by
// itself. The runtime's timers come late, by a millisecond at most and by the time that the sends of the group before take, so a
// round of steps that are not much longer takes more than the interval.
const relayStep = 1500 * time.Microsecond

// gate is where the watchers of one group wait.
type gate struct {
	waiting atomic.Int64
	next    atomic.Pointer[chan struct{}] // closed when the gate opens; nil: nobody has waited yet
}

// join counts a watcher in and returns its gate. Those that join one after the other get gates that lie far apart.
func (r *relay) join() *gate {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watchers++; r.watchers == 1 {
		r.stop = make(chan struct{})
		go r.run(r.stop)
	}
	r.drawn++
	return &r.gates[bits.Reverse16(r.drawn)>>(16-gateBits)]
}

func (r *relay) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watchers--; r.watchers == 0 {
		close(r.stop)
	}
}

func (r *relay) run(stop <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	defer r.shown.Store(nil) // without watchers nothing keeps a snapshot alive
	for {
		p := r.source.Current()
		if !r.round(stop, timer) {
			return
		}
		select {
		case <-p.Next:
		case <-stop:
			return
		}
	}
}

// round opens every gate once and returns when the interval is over; false when it was stopped. A round that falls behind, as
// in a collection of garbage, hardly hurries: the sends that it put together would stand in the way of reports.
func (r *relay) round(stop <-chan struct{}, timer *time.Timer) bool {
	interval := r.pace.interval()
	steps := int(min(max(1, interval/relayStep), time.Duration(len(r.gates))))
	begun := time.Now()
	defer func() { r.took.Store(int64(time.Since(begun))) }()
	for i := range steps {
		if phase := i * phases / steps; i == 0 || phase != (i-1)*phases/steps {
			r.shown.Store(r.source.Current())
		}
		for g := len(r.gates) * i / steps; g < len(r.gates)*(i+1)/steps; g++ {
			r.gates[g].open()
		}
		if interval == 0 {
			continue
		}
		step := interval / time.Duration(steps)
		timer.Reset(max(time.Until(begun.Add(time.Duration(i+1)*step)), step*3/4))
		select {
		case <-timer.C:
		case <-stop:
			return false
		}
	}
	return true
}

// interval returns how much time lies between two sends to one watcher under load: what the pace asks for, or what a round
// takes if that is more; 0 when the pace is no limit.
func (r *relay) interval() time.Duration {
	if d := r.pace.interval(); d > 0 {
		return max(d, time.Duration(r.took.Load()))
	}
	return 0
}

// show returns what a watcher looks at: what is shown, unless the watcher is ahead of that.
func (r *relay) show(newest *load.Publication, t *turn) *load.Publication {
	if p := r.shown.Load(); p != nil && p.Snapshot.Version >= t.looked && p.Beat >= t.beat {
		return p
	}
	return newest
}

// enter returns the channel that is closed when the gate opens next. Who enters looks at what is shown after that and before
// waiting, and says leave in the end.
func (g *gate) enter() <-chan struct{} {
	g.waiting.Add(1)
	for {
		if c := g.next.Load(); c != nil {
			return *c
		}
		c := make(chan struct{})
		g.next.CompareAndSwap(nil, &c)
	}
}

func (g *gate) leave() { g.waiting.Add(-1) }

// open lets those through who wait.
func (g *gate) open() {
	if g.waiting.Load() == 0 {
		return
	}
	if c := g.next.Swap(nil); c != nil {
		close(*c)
	}
}
