package registration

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// lease keeps one worker's engine reporting to this monitor, from the moment it is known to push its load until the worker
// is removed or changes; of a worker that is fed in another way, or not yet, it only shows that. Its loop asks, digests the answer, and waits for the next time to ask:
//
//	Pending ──► Leased ──renewed in time──► Leased
//	   │           │ failed
//	   ├──► Retrying (soon: fractions of a second, later 5 s)      the lease may still live, and may run out meanwhile
//	   └──► Refused  (slowly, until something changes)
//
// What is shown says what the last request came to; a lease that still lives during Retrying or Refused keeps the
// engine's reports coming, and nothing here stands in their way.
type lease struct {
	// immutable
	worker    load.Worker
	tokenFile string
	engines   *engines
	sink      Sink
	log       *slog.Logger
	counts    *leaseCounts
	ctx       context.Context
	stop      context.CancelFunc
	nudges    chan struct{} // one slot
	ended     chan struct{} // closed when run has returned

	before *lease // the loop that had this id before; set before run starts, nil once it has ended

	mu    sync.Mutex
	shown status

	// used only by run
	expires   time.Time // of the lease; zero: none is held
	lost      bool      // the last lease ran out and there is no new one
	failures  int       // in a row
	failing   time.Time // when the first of them happened
	moved     int       // renewals that nudges brought about since one that came quietly
	note      string    // as the sink has it
	announced logged    // how far the log has followed the episode
}

// status is what registration shows of one worker.
type status struct {
	state   load.RegistrationState
	reason  string
	http    int       // of the engine's last answer
	expires time.Time // while Leased
}

// logged is what the log knows of an episode of trouble.
type logged uint8

const (
	logSilent  logged = iota // no trouble
	logTrouble               // it began
	logRefused               // the engine refused: something must be done
)

// plan is when to ask next.
type plan struct {
	at time.Time
	// earliest is when a nudge may bring it about; zero: nudges change nothing.
	earliest time.Time
}

func newLease(ctx context.Context, r *Registry, t *target, c *choice) *lease {
	l := &lease{
		worker:    c.worker,
		tokenFile: t.tokenFile,
		engines:   r.engines,
		sink:      r.opts.Sink,
		log:       r.log.With("worker", t.worker.ID, "url", t.worker.URL),
		counts:    &r.leases,
		nudges:    make(chan struct{}, 1),
		ended:     make(chan struct{}),
		shown:     status{state: load.RegistrationPending},
	}
	l.ctx, l.stop = context.WithCancel(ctx)
	switch {
	case c.worker.Conflict != "":
		l.shown = status{state: load.RegistrationConflict, reason: c.worker.Conflict}
	case c.worker.Transport == load.TransportUnspecified:
		l.shown.reason = c.note
	case c.worker.Transport != load.TransportPush:
		l.shown = status{state: load.RegistrationNotNeeded, reason: c.note}
	}
	return l
}

// run keeps the lease until the worker is removed or changes, or registration ends.
func (l *lease) run() {
	defer close(l.ended)
	defer l.stop()
	if l.before != nil {
		<-l.before.ended
		l.before = nil
	}
	if l.ctx.Err() != nil {
		return
	}
	first := l.status()
	l.note = first.reason
	l.sink.SetNote(l.worker.ID, first.reason) // replaces what the loop before may have left
	if l.worker.Conflict != "" || l.worker.Transport != load.TransportPush {
		return
	}
	for {
		next, ok := l.runOnce()
		if !ok || !l.wait(next) {
			return
		}
	}
}

// runOnce asks the engine once and shows what came of it. It reports false when the loop is to end.
func (l *lease) runOnce() (plan, bool) {
	select {
	case <-l.nudges: // this request is what it asks for
	default:
	}
	why := firstTry
	if l.failures > 0 {
		why = nextTry
	} else if !l.expires.IsZero() {
		why = renewal
	}
	a, sent := l.engines.start(l.ctx, l.worker, l.tokenFile, why)
	if l.ctx.Err() != nil {
		return plan{}, false
	}
	now := time.Now()
	l.expire(now)
	if a.outcome == granted {
		if p, ok := l.grant(a, sent, now); ok {
			return p, true
		}
		a.outcome = shortLease
		a.reason = "the engine grants a lease too short for the report interval: lower the interval, or raise its limit"
	}
	return l.fail(a, now), true
}

// grant takes a lease. It reports false when the lease cannot be kept.
func (l *lease) grant(a answer, sent, now time.Time) (plan, bool) {
	t := l.engines.timing
	length, renew, ok := t.granted(a.leaseMs, a.renewMs)
	if !ok {
		return plan{}, false
	}
	if l.expires.IsZero() {
		l.counts.grants.Add(1)
	} else {
		l.counts.renewals.Add(1)
	}
	// Both are measured from when we asked: the engine's own lease begins later, so ours never outlives it.
	l.expires = sent.Add(length)
	l.lost, l.failures = false, 0
	l.show(status{state: load.RegistrationLeased, http: a.http, expires: l.expires})
	at := sent.Add(t.renewIn(renew))
	// A slow answer must not push two requests together on the engine's side.
	if floor := now.Add(t.interval + t.interval/20); at.Before(floor) {
		at = floor
	}
	return plan{at: at, earliest: now.Add(t.spacing(l.moved))}, true
}

// fail decides when to try again.
func (l *lease) fail(a answer, now time.Time) plan {
	t := l.engines.timing
	if l.failures == 0 {
		l.failing = now
	}
	// An engine that asks for patience gets it; one that is away may be back any moment.
	young := now.Sub(l.failing) < t.lease && a.outcome != throttled
	s := status{state: load.RegistrationRefused, reason: a.reason, http: a.http}
	var wait time.Duration
	switch {
	case a.outcome.soon():
		s.state = load.RegistrationRetrying
		wait = pause(l.failures, young)
		if a.retryAfter > wait {
			wait = min(a.retryAfter, t.slow) + jitter(backoffJitter)
		}
	case a.outcome == owned:
		wait = t.lease + jitter(backoffJitter)
	default:
		wait = t.slow*3/4 + jitter(t.slow/4)
	}
	l.failures++
	l.show(s)
	return plan{at: now.Add(wait)}
}

// wait sleeps until the plan's time and sees meanwhile to a lease that runs out and to nudges. It reports false when the
// loop is to end.
func (l *lease) wait(p plan) bool {
	nudges := l.nudges
	if p.earliest.IsZero() || !p.earliest.Before(p.at) {
		nudges = nil
	}
	moved := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		l.expire(now)
		if !now.Before(p.at) {
			if moved {
				l.moved++
			} else if len(l.nudges) == 0 {
				l.moved = 0
			}
			return true
		}
		wake := p.at
		if !l.expires.IsZero() && l.expires.Before(wake) {
			wake = l.expires
		}
		timer.Reset(wake.Sub(now))
		select {
		case <-l.ctx.Done():
			return false
		case <-timer.C:
		case <-nudges:
			l.counts.nudges.Add(1)
			p.at, moved, nudges = p.earliest, true, nil
		}
	}
}

// expire notices that the lease has run out.
func (l *lease) expire(now time.Time) {
	if l.expires.IsZero() || now.Before(l.expires) {
		return
	}
	l.expires, l.lost = time.Time{}, true
	l.counts.losses.Add(1)
	if s := l.status(); s.state != load.RegistrationLeased {
		l.show(s)
	}
}
