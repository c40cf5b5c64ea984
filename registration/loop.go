package registration

import (
	"context"
	"sync"
	"time"
)

// loop takes turns, one at a time, until it is stopped. Each turn runs in a goroutine of its own and says when the next one
// is due. Between two there is only a timer: thousands of loops wait, and the stack on which a request to an engine runs is
// kept for none of them.
type loop struct {
	owner owner

	// immutable once started
	family *family
	before *loop // must have ended before the first turn; nil: none

	mu sync.Mutex
	// guarded by mu
	timer   *time.Timer        // begins the next turn; nil: not started
	cancel  context.CancelFunc // of the turn under way; nil: none is
	again   bool               // another turn is due when that one ends
	stopped bool
	isOver  bool          // the last turn has ended
	ended   chan struct{} // closed then; nil: nobody waits for it
}

// owner is whose turns a loop takes.
type owner interface {
	workerID() string
	// turn says when the next one is due; false: there is none.
	turn(context.Context) (next time.Time, ok bool)
}

// start begins the turns, the first one when before has ended.
func (l *loop) start(f *family, before *loop) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.family, l.before = f, before
	l.timer = time.AfterFunc(0, l.run)
}

// wake brings the next turn about now, or at the end of the one that is under way. It never blocks.
func (l *loop) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.again = true
	if l.timer != nil && l.timer.Stop() {
		go l.run()
	}
}

// stop lets no further turn begin and cancels the context of the one that is under way. It does not wait for its end.
func (l *loop) stop() {
	l.mu.Lock()
	l.stopped = true
	if l.cancel != nil {
		l.cancel()
	}
	idle := l.timer.Stop()
	l.mu.Unlock()
	if idle {
		l.end()
	}
}

// run takes a turn, and further ones that are due at its end.
func (l *loop) run() {
	if l.before != nil {
		<-l.before.whenOver()
		l.before = nil
	}
	l.mu.Lock()
	for !l.stopped {
		ctx, cancel := context.WithCancel(l.family.ctx)
		l.cancel, l.again = cancel, false
		l.mu.Unlock()
		next, ok := l.owner.turn(ctx)
		cancel()
		l.mu.Lock()
		l.cancel = nil
		if !ok {
			break
		}
		if !l.again && !l.stopped {
			l.timer.Reset(time.Until(next))
			l.mu.Unlock()
			return
		}
	}
	l.mu.Unlock()
	l.end()
}

func (l *loop) end() {
	l.mu.Lock()
	l.isOver = true
	if l.ended != nil {
		close(l.ended)
	}
	l.mu.Unlock()
	l.family.done(l)
}

// over reports whether the last turn has ended.
func (l *loop) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isOver
}

// whenOver returns a channel that is closed after the last turn.
func (l *loop) whenOver() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		l.ended = make(chan struct{})
		if l.isOver {
			close(l.ended)
		}
	}
	return l.ended
}

// plan is when to ask next, and what may bring that forward.
type plan struct {
	at time.Time
	// lead is how much earlier a nudge may bring it about; not above 0: nudges change nothing.
	lead   time.Duration
	nudged bool // one has brought it about
}

// pull brings the plan forward for a nudge, once, and reports whether it did.
func (p *plan) pull() bool {
	if p.nudged || p.lead <= 0 {
		return false
	}
	p.at, p.nudged = p.at.Add(-p.lead), true
	return true
}

// family is the loops of one kind: one for each worker, and what they have in common.
type family struct {
	ctx     context.Context // set before the first loop starts
	running sync.WaitGroup

	mu     sync.Mutex
	ending map[string]*loop // guarded by mu; by worker: loops that were stopped and are not over yet
}

func newFamily() *family { return &family{ending: make(map[string]*loop)} }

// start starts a worker's loop, after the one that it had before, if that has not ended yet.
func (f *family) start(l *loop) {
	f.mu.Lock()
	before := f.ending[l.owner.workerID()]
	f.mu.Unlock()
	f.running.Add(1)
	l.start(f, before)
}

// stop stops a worker's loop, without waiting for its end: the worker's next one does.
func (f *family) stop(l *loop) {
	l.stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !l.over() {
		f.ending[l.owner.workerID()] = l
	}
}

// done notes that a loop has ended.
func (f *family) done(l *loop) {
	defer f.running.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	if id := l.owner.workerID(); f.ending[id] == l {
		delete(f.ending, id)
	}
}
