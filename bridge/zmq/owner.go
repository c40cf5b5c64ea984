package zmq

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// pace is how long an owner under load collects edges before it looks again: waking for each costs more than the
	// message. When it was quiet the first message is taken at once.
	pace = 2 * time.Millisecond
	// yieldEvery keeps the runtime from taking the processor of an owner that has been in short system calls for 10 ms: its
	// monitor thread would then be woken again and again, which costs as much as several messages each time.
	yieldEvery = 5 * time.Millisecond
	// sweepEvery is how often it is seen which ranks need to be looked at, with more than manyRanks manySweepEvery: a wake-up
	// of a process that has nothing else to do costs as much as a few hundred ranks.
	sweepEvery     = 250 * time.Millisecond
	manyRanks      = 1024
	manySweepEvery = time.Second
)

// owner is one goroutine that holds sockets. libzmq wants a socket to be used by one thread at a time with a full fence
// between two of them, which the Go scheduler gives a goroutine that moves.
type owner struct {
	b *Bridge

	mu sync.Mutex
	// guarded by mu
	inbox  []func()
	poller *poller // nil: nobody waits. Immutable while run runs
	ended  bool

	// used only by run
	ranks   []*rank
	looks   []instant // when to look at each of ranks
	workers map[string]*worker
	conns   []*conn  // by the lower half of a token
	ages    []uint32 // how often each place in conns was used: the upper half
	vacant  []uint32 // places in conns that are free
	ready   []*conn  // have more to read than one visit takes; no edge will come for it
	spare   []*conn  // the other half of a double buffer with ready
	capped  []*conn  // to be visited at flush, because of the rate cap
	flush   instant
	sweepAt instant
	busy    instant // when edges were last handled
	hurry   bool    // some connection is behind
	yielded instant
	decoder *Decoder
	buffer  []byte
	report  report
	tasks   []func() // the other half of a double buffer with inbox
}

func newOwner(b *Bridge) *owner {
	return &owner{
		b: b, workers: make(map[string]*worker), decoder: NewDecoder(), buffer: make([]byte, MaxMessageBytes),
	}
}

func (o *owner) open(p *poller) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.poller = p
}

// close lets later posts know that nobody waits any more.
func (o *owner) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.poller, o.inbox, o.ended = nil, nil, true
}

// post lets the owner do something soon, after all that was posted before. After Run has returned nothing happens.
func (o *owner) post(task func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	o.inbox = append(o.inbox, task)
	if o.poller != nil {
		o.poller.wake()
	}
}

func (o *owner) runTasks() {
	o.mu.Lock()
	o.inbox, o.tasks = o.tasks[:0], o.inbox
	o.mu.Unlock()
	for i, task := range o.tasks {
		task()
		o.tasks[i] = nil
	}
}

// run holds the sockets until ctx ends.
func (o *owner) run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { o.post(func() {}) })()
	defer o.shut()
	o.runTasks()
	var pause, timeout time.Duration
	for ctx.Err() == nil {
		edges, err := o.poller.wait(pause, timeout)
		o.hurry = false
		if err != nil {
			return err
		}
		now := o.b.now()
		for i := range edges {
			if t := o.poller.token(&edges[i]); t == signalToken {
				o.runTasks()
			} else if c := o.connOf(t); c != nil {
				o.visit(c, now)
			}
		}
		again := o.ready
		o.ready = o.spare[:0]
		for _, c := range again {
			c.ready = false
			o.drain(c, now, false)
		}
		clear(again)
		o.spare = again
		if len(o.capped) > 0 && now >= o.flush {
			o.flushCapped(now)
		}
		if now >= o.sweepAt {
			o.sweep(now)
			o.sweepAt = now + sweepEvery
			if len(o.ranks) > manyRanks {
				o.sweepAt = now + manySweepEvery
			}
		}
		pause, timeout = 0, o.sweepAt-now
		if len(o.capped) > 0 {
			timeout = min(timeout, o.flush-now)
		}
		busy := len(edges) > 0 || len(again) > 0
		if len(o.ready) > 0 {
			timeout = 0
		} else if busy && now-o.busy < 2*pace && !o.hurry {
			pause = pace
		}
		if busy {
			o.busy = now
			if now-o.yielded >= yieldEvery {
				o.yielded = now
				runtime.Gosched()
			}
		}
	}
	return nil
}

// connOf returns the connection of a token; nil: it was closed.
func (o *owner) connOf(token uint64) *conn {
	c := o.conns[uint32(token)]
	if c == nil || c.token != token {
		return nil
	}
	return c
}

// add begins with a rank. It is called once for each.
func (o *owner) add(r *rank) {
	if r.removed.Load() {
		return
	}
	w := o.workers[r.target.WorkerID]
	if w == nil {
		w = &worker{id: r.target.WorkerID}
		o.workers[w.id] = w
	}
	w.ranks++
	r.worker = w
	r.index = len(o.ranks)
	o.ranks = append(o.ranks, r)
	o.looks = append(o.looks, 0)
	if why := r.target.invalid(); why != "" {
		o.note(r, why)
		return
	}
	o.b.dialer.hold(r.target.Host)
	if o.b.places.take(r) {
		o.dial(r, 0)
		return
	}
	n := o.b.places.waiting()
	if o.b.counts.starved.Swap(int64(n)) == 0 {
		o.b.log.Error("some ranks get no socket", "reason", o.b.limits.shortfall(int(o.b.counts.targets.Load())))
	}
	o.note(r, o.b.limits.shortfall(int(o.b.counts.targets.Load())))
}

// remove ends with a rank, whether or not it was added. Its note stays: whoever took it out of the targets may have said
// why by now.
func (o *owner) remove(r *rank) {
	w := r.worker
	if w == nil {
		return
	}
	if r.conn != nil {
		o.countLate(r.conn)
		o.drop(r.conn)
	}
	o.endTrouble(r)
	if r.target.invalid() == "" {
		o.b.dialer.drop(r.target.Host)
		next := o.b.places.leave(r)
		o.b.counts.starved.Store(int64(o.b.places.waiting()))
		if next != nil {
			next.owner.post(func() {
				if !next.removed.Load() {
					next.owner.dial(next, 0)
				}
			})
		}
	}
	last := len(o.ranks) - 1
	o.ranks[r.index] = o.ranks[last]
	o.ranks[r.index].index = r.index
	o.ranks[last] = nil
	o.ranks = o.ranks[:last]
	o.looks[r.index] = o.looks[last]
	o.looks = o.looks[:last]
	r.worker = nil
	w.ranks--
	o.forget(w)
}

// forget lets go of a worker without ranks, once no question about it is open.
func (o *owner) forget(w *worker) {
	if w.ranks == 0 && w.probing == nil {
		delete(o.workers, w.id)
	}
}

// shut closes every socket: a context ends only when its sockets have.
func (o *owner) shut() {
	for _, r := range slices.Clone(o.ranks) {
		if r.conn != nil {
			o.drop(r.conn)
		}
	}
}
