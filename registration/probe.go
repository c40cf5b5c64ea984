package registration

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// probe asks one worker's engine what it is, from the moment the worker is known until it is removed or moves. It has one
// request under way at most. What an engine said stays until it says something else (case K2): a request that fails shows
// that it failed and removes nothing.
type probe struct {
	// immutable
	worker  load.Worker // as configured
	open    bool        // the worker is not fed before its engine has answered
	keyFile string
	engines *engines
	log     *slog.Logger
	learned func() // what is known has changed; does not block
	ctx     context.Context
	stop    context.CancelFunc
	nudges  chan struct{}          // one slot
	asks    chan chan<- inspection // each has room for the answer
	ended   chan struct{}          // closed when run has returned

	before *probe // the loop that had this id before; set before run starts, nil once it has ended

	mu sync.Mutex
	// guarded by mu
	known   known
	trouble string // of the newest request; empty: it was answered

	// used only by run
	failures int       // in a row
	failing  time.Time // when the first of them happened
	moved    int       // requests that nudges brought about since one that came by itself
	logged   bool      // the log says that there is trouble
}

// known is what is known of an engine. It compares with ==.
type known struct {
	facts facts
	told  bool // there are facts
	// silent says that an engine without facts is there and does not tell any.
	silent bool
	// trouble is why there are no facts; empty once there are.
	trouble string
	// generation counts the times that another engine seemed to answer.
	generation uint64
}

// decided reports whether the engine's word on what is not configured is known, or is known not to come.
func (k *known) decided() bool { return k.told || k.silent }

func newProbe(ctx context.Context, r *Registry, t *target, k known) *probe {
	p := &probe{
		worker:  t.worker,
		open:    t.open(),
		keyFile: t.apiKeyFile,
		engines: r.engines,
		log:     r.log.With("worker", t.worker.ID, "url", t.worker.URL),
		learned: r.learn,
		nudges:  make(chan struct{}, 1),
		asks:    make(chan chan<- inspection),
		ended:   make(chan struct{}),
		known:   k,
	}
	p.ctx, p.stop = context.WithCancel(ctx)
	return p
}

// sameProbe reports whether what asks about x serves y.
func sameProbe(x, y *target) bool {
	return x.worker.URL == y.worker.URL && x.apiKeyFile == y.apiKeyFile && x.open() == y.open() &&
		(x.worker.Conflict == "") == (y.worker.Conflict == "")
}

func (p *probe) state() known {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known
}

// error returns why the newest request failed; empty: it did not.
func (p *probe) error() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trouble
}

// nudge makes the loop ask soon instead of at its time. It never blocks.
func (p *probe) nudge() {
	select {
	case p.nudges <- struct{}{}:
	default:
	}
}

// ask returns the engine's answer to a request that begins after the call, on a new connection.
func (p *probe) ask(ctx context.Context) (inspection, error) {
	answer := make(chan inspection, 1)
	select {
	case p.asks <- answer:
	case <-ctx.Done():
		return inspection{}, ctx.Err()
	case <-p.ended:
		return inspection{}, load.ErrWorkerRemoved
	}
	select {
	case in := <-answer:
		return in, nil
	case <-ctx.Done():
		return inspection{}, ctx.Err()
	case <-p.ended:
		return inspection{}, load.ErrWorkerRemoved
	}
}

// run asks until the worker is removed or moves, or registration ends. Two workers with one address are not asked.
func (p *probe) run() {
	defer close(p.ended)
	defer p.stop()
	if p.before != nil {
		<-p.before.ended
		p.before = nil
	}
	if p.worker.Conflict != "" {
		return
	}
	var waiting chan<- inspection
	for p.ctx.Err() == nil {
		in := p.once(waiting != nil)
		if p.ctx.Err() != nil {
			return
		}
		next := p.digest(&in, time.Now())
		if waiting != nil {
			waiting <- in
		}
		waiting = p.wait(next)
	}
}

// once asks the engine. fresh says that somebody waits for the answer.
func (p *probe) once(fresh bool) inspection {
	select {
	case <-p.nudges: // this request is what it asks for
	default:
	}
	why := firstTry
	switch {
	case fresh:
		why = vouching
	case p.failures > 0:
		why = nextTry
	case p.state().told:
		why = renewal
	}
	return p.engines.inspect(p.ctx, &p.worker, p.keyFile, why, fresh)
}

// digest keeps what an answer says and decides when to ask again.
func (p *probe) digest(in *inspection, now time.Time) plan {
	t := p.engines.timing
	wait, earliest := t.probeIn(), min(nudgeFloor<<min(p.moved, 8), t.probe)
	if in.outcome == granted {
		p.failures = 0
		if p.learn(in.facts) {
			wait = earliest // whatever changed may not have finished changing
		}
		p.recovered()
		return plan{at: now.Add(wait), earliest: now.Add(earliest)}
	}
	if p.failures == 0 {
		p.failing = now
	}
	young := now.Sub(p.failing) < t.lease
	enough := p.fail(in, young)
	if in.outcome.soon() && (young || !enough) {
		wait = min(wait, pause(p.failures, young && in.outcome != throttled))
	}
	if in.retryAfter > wait {
		wait = min(in.retryAfter, t.slow) + jitter(backoffJitter)
	}
	p.failures++
	return plan{at: now.Add(wait), earliest: now.Add(earliest)}
}

// learn takes the engine's word and reports whether it said something else before.
func (p *probe) learn(f facts) (changed bool) {
	p.mu.Lock()
	was := p.known
	k := known{facts: f, told: true, generation: was.generation}
	if was.told && (f.model() != was.facts.model() || f.mode != was.facts.mode) {
		k.generation++
	}
	p.known, p.trouble = k, ""
	p.mu.Unlock()
	if k != was {
		p.learned()
	}
	return was.told && k != was
}

// fail notes that there was no answer. It reports whether enough is known nevertheless.
func (p *probe) fail(in *inspection, young bool) (enough bool) {
	definite := in.definite(young)
	p.mu.Lock()
	p.trouble = in.reason
	k := p.known
	if !k.told && (definite || !k.silent) {
		// An engine that was there and is away stays what it was.
		k.silent, k.trouble = definite, in.reason
	}
	changed := k != p.known
	p.known = k
	p.mu.Unlock()
	if changed {
		p.learned()
	}
	enough = k.decided() || !p.open
	p.complain(in, definite || !enough)
	return enough
}

// complain logs an episode of trouble once, if it matters: that an engine is away is shown by what feeds the worker.
func (p *probe) complain(in *inspection, matters bool) {
	if !matters || p.logged {
		return
	}
	p.logged = true
	level := slog.LevelWarn
	if in.outcome == unsupported { // older engines have none
		level = slog.LevelInfo
	}
	p.log.Log(p.ctx, level, "the engine does not say what it is; asked again from time to time", "reason", in.reason)
}

func (p *probe) recovered() {
	if p.logged {
		p.logged = false
		p.log.Info("the engine says what it is")
	}
}

// wait sleeps until it is time to ask. It returns who waits for the answer, if that is why.
func (p *probe) wait(next plan) (waiting chan<- inspection) {
	nudges := p.nudges
	if !next.earliest.Before(next.at) {
		nudges = nil
	}
	moved := false
	timer := time.NewTimer(time.Until(next.at))
	defer timer.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return nil
		case waiting = <-p.asks:
			return waiting
		case <-timer.C:
			if moved {
				p.moved++
			} else if len(p.nudges) == 0 {
				p.moved = 0
			}
			return nil
		case <-nudges:
			nudges, moved = nil, true
			timer.Reset(max(0, time.Until(next.earliest)))
		}
	}
}
