package registration

import (
	"context"
	"sync"
	"time"
)

// loop takes turns, one at a time, until it is stopped. Each turn runs in a goroutine of its own and says when the next one
// is due. Between two it is only in its family's agenda: thousands of loops wait, and neither a timer nor the stack on which
// a request to an engine runs is kept for any of them.
type loop struct {
	owner owner

	mu sync.Mutex
	// guarded by mu
	family  *family            // immutable once started; nil: not started
	cancel  context.CancelFunc // of the turn under way; nil: none is
	ended   chan struct{}      // closed when the last turn has ended; nil: nobody waits for it
	again   bool               // another turn is due when the one under way ends
	stopped bool
	isOver  bool // the last turn has ended

	place int32 // in the agenda, counted from 1, and guarded by it; 0: the loop does not wait
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
	l.family = f
	l.mu.Unlock()
	go func() {
		if before != nil {
			<-before.whenOver()
		}
		l.run()
	}()
}

// wake brings the next turn about now, or at the end of the one that is under way. It never blocks.
func (l *loop) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.again = true
	if l.family != nil && l.family.agenda.remove(l) {
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
	waited := l.family.agenda.remove(l)
	l.mu.Unlock()
	if waited {
		l.end()
	}
}

// run takes a turn, and further ones that are due at its end.
func (l *loop) run() {
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
			l.family.agenda.put(l, next)
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
	agenda  *agenda

	mu     sync.Mutex       // taken before a loop's, never under it
	ending map[string]*loop // guarded by mu; by worker: loops that were stopped and are not over yet
}

func newFamily() *family { return &family{agenda: newAgenda(), ending: make(map[string]*loop)} }

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
