package registration

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/loadmonitor/loadmonitor/load"
)

// probe asks one worker's engine what it is, from the moment the worker is known until it is removed or moves. It has one
// request under way at most. What an engine said stays until it says something else (case K2): a request that fails shows
// that it failed and removes nothing.
type probe struct {
	loop loop

	// immutable
	registry *Registry
	target   *target

	nudged atomic.Bool // since the last request began

	mu sync.Mutex
	// guarded by mu
	known   unique.Handle[known] // engines of a fleet have most in common, so equal ones share it
	trouble string               // of the newest request; empty: it was answered
	asking  []chan<- inspection  // who waits for the answer to the next request; each has room for it

	// used only by turns
	plan     plan
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

func newProbe(r *Registry, t *target, k unique.Handle[known]) *probe {
	p := &probe{registry: r, target: t, known: k}
	p.loop.owner = p
	return p
}

// sameProbe reports whether what asks about x serves y.
func sameProbe(x, y *target) bool {
	return x.worker.URL == y.worker.URL && x.apiKeyFile == y.apiKeyFile && x.open() == y.open() &&
		(x.worker.Conflict == "") == (y.worker.Conflict == "")
}

func (p *probe) state() unique.Handle[known] {
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
	if !p.nudged.Swap(true) {
		p.loop.wake()
	}
}

// ask returns the engine's answer to a request that begins after the call, on a new connection.
func (p *probe) ask(ctx context.Context) (inspection, error) {
	answer := make(chan inspection, 1)
	p.mu.Lock()
	p.asking = append(p.asking, answer)
	p.mu.Unlock()
	p.loop.wake()
	select {
	case in := <-answer:
		return in, nil
	case <-ctx.Done():
		return inspection{}, ctx.Err()
	case <-p.loop.whenOver():
		return inspection{}, load.ErrWorkerRemoved
	}
}

// takeAsking returns who waits for an answer; the next request is for them.
func (p *probe) takeAsking() []chan<- inspection {
	p.mu.Lock()
	defer p.mu.Unlock()
	asking := p.asking
	p.asking = nil
	return asking
}

func (p *probe) workerID() string { return p.target.worker.ID }

// turn asks if it is time to, or if somebody waits for the answer, and sees to nudges. Two workers with one address are
// not asked.
func (p *probe) turn(ctx context.Context) (next time.Time, ok bool) {
	if p.target.worker.Conflict != "" {
		return time.Time{}, false
	}
	for {
		if p.nudged.Load() {
			p.plan.pull()
		}
		asking := p.takeAsking()
		now := time.Now()
		if len(asking) == 0 {
			if now.Before(p.plan.at) {
				return p.plan.at, true
			}
			if p.plan.nudged {
				p.moved++
			} else if !p.nudged.Load() {
				p.moved = 0
			}
		}
		in := p.once(ctx, len(asking) > 0)
		if ctx.Err() != nil {
			return time.Time{}, false
		}
		p.plan = p.digest(&in, time.Now())
		for _, answer := range asking {
			answer <- in
		}
	}
}

// once asks the engine. fresh says that somebody waits for the answer.
func (p *probe) once(ctx context.Context, fresh bool) inspection {
	p.nudged.Store(false) // this request is what nudges ask for
	why := firstTry
	switch {
	case fresh:
		why = vouching
	case p.failures > 0:
		why = nextTry
	case p.state().Value().told:
		why = renewal
	}
	return p.registry.engines.inspect(ctx, &p.target.worker, p.target.apiKeyFile, why, fresh)
}

// digest keeps what an answer says and decides when to ask again.
func (p *probe) digest(in *inspection, now time.Time) plan {
	t := p.registry.engines.timing
	wait, earliest := t.probeIn(), min(nudgeFloor<<min(p.moved, 8), t.probe)
	if in.outcome == granted {
		p.failures = 0
		if p.learn(in.facts) {
			wait = earliest // whatever changed may not have finished changing
		}
		p.recovered()
		return plan{at: now.Add(wait), lead: wait - earliest}
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
	return plan{at: now.Add(wait), lead: wait - earliest}
}

// learn takes the engine's word and reports whether it said something else before.
func (p *probe) learn(f facts) (changed bool) {
	p.mu.Lock()
	was := p.known.Value()
	k := known{facts: f, told: true, generation: was.generation}
	if was.told && (f.model() != was.facts.model() || f.mode != was.facts.mode) {
		k.generation++
	}
	p.known, p.trouble = unique.Make(k), ""
	p.mu.Unlock()
	if k != was {
		p.registry.learn()
	}
	return was.told && k != was
}

// fail notes that there was no answer. It reports whether enough is known nevertheless.
func (p *probe) fail(in *inspection, young bool) (enough bool) {
	definite := in.definite(young)
	p.mu.Lock()
	p.trouble = in.reason
	k := p.known.Value()
	if !k.told && (definite || !k.silent) {
		// An engine that was there and is away stays what it was.
		k.silent, k.trouble = definite, in.reason
	}
	changed := k != p.known.Value()
	p.known = unique.Make(k)
	p.mu.Unlock()
	if changed {
		p.registry.learn()
	}
	enough = k.decided() || !p.target.open() // one that is not open is fed without an answer
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
	p.logger().Log(context.Background(), level, "the engine does not say what it is; asked again from time to time", "reason", in.reason)
}

func (p *probe) logger() *slog.Logger {
	w := &p.target.worker
	return p.registry.log.With("worker", w.ID, "url", w.URL)
}

func (p *probe) recovered() {
	if p.logged {
		p.logged = false
		p.logger().Info("the engine says what it is")
	}
}
