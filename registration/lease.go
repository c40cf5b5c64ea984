package registration

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// lease keeps one worker's engine reporting to this monitor, from the moment it is known to push its load until the worker
// is removed or changes; of a worker that is fed in another way, or not yet, it only shows that. Its loop asks, digests the
// answer, and plans when to ask next:
//
//	Pending ──► Leased ──renewed in time──► Leased
//	   │           │ failed
//	   ├──► Retrying (soon: fractions of a second, later 5 s)      the lease may still live, and may run out meanwhile
//	   └──► Refused  (slowly, until something changes)
//
// What is shown says what the last request came to; a lease that still lives during Retrying or Refused keeps the
// engine's reports coming, and nothing here stands in their way.
type lease struct {
	loop loop

	// immutable
	registry  *Registry
	worker    *load.Worker
	tokenFile string

	nudged atomic.Bool // since the last request began

	mu sync.Mutex
	// written by turns only, guarded by mu
	shown   status    // the sink has its reason as the worker's note
	expires time.Time // of the lease; zero: none is held

	// used only by turns
	plan      plan
	failing   time.Time // when the first failure of those in a row happened
	failures  int32     // in a row
	moved     int32     // renewals that nudges brought about since one that came quietly
	lost      bool      // the last lease ran out and there is no new one
	announced logged    // how far the log has followed the episode
}

// status is what registration shows of one worker.
type status struct {
	state  load.RegistrationState
	reason string
	http   int // of the engine's last answer
}

// logged is what the log knows of an episode of trouble.
type logged uint8

const (
	logSilent  logged = iota // no trouble
	logTrouble               // it began
	logRefused               // the engine refused: something must be done
)

func newLease(r *Registry, t *target, c *choice) *lease {
	l := &lease{
		registry:  r,
		worker:    &c.worker,
		tokenFile: t.tokenFile,
		shown:     status{state: load.RegistrationPending},
	}
	l.loop.owner = l
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

func (l *lease) workerID() string { return l.worker.ID }

// turn asks if it is time to, and sees to a lease that ran out and to nudges.
func (l *lease) turn(ctx context.Context) (next time.Time, ok bool) {
	if l.plan.at.IsZero() && !l.first() {
		return time.Time{}, false
	}
	for {
		now := time.Now()
		l.expire(now)
		if l.nudged.Load() && l.plan.pull() {
			l.registry.leases.nudges.Add(1)
		}
		if now.Before(l.plan.at) {
			break
		}
		if !l.ask(ctx) {
			return time.Time{}, false
		}
	}
	next = l.plan.at
	if !l.expires.IsZero() && l.expires.Before(next) {
		next = l.expires
	}
	return next, true
}

// first shows the worker's state before anything was asked. It reports false when nothing is to be asked.
func (l *lease) first() bool {
	l.registry.opts.Sink.SetNote(l.worker.ID, l.shown.reason) // replaces what the loop before may have left
	return l.worker.Conflict == "" && l.worker.Transport == load.TransportPush
}

// logger is made when there is something to say: there are thousands of leases, and few ever have.
func (l *lease) logger() *slog.Logger {
	return l.registry.log.With("worker", l.worker.ID, "url", l.worker.URL)
}

// nudge makes the loop renew soon instead of at its time. It never blocks.
func (l *lease) nudge() {
	if !l.nudged.Swap(true) {
		l.loop.wake()
	}
}

// ask asks the engine once, shows what came of it, and plans the next time. It reports false when the loop is to end.
func (l *lease) ask(ctx context.Context) bool {
	if l.plan.nudged {
		l.moved++
	} else if !l.nudged.Load() {
		l.moved = 0
	}
	l.nudged.Store(false) // this request is what nudges ask for
	why := firstTry
	if l.failures > 0 {
		why = nextTry
	} else if !l.expires.IsZero() {
		why = renewal
	}
	a, sent := l.registry.engines.start(ctx, l.worker, l.tokenFile, why)
	if ctx.Err() != nil {
		return false
	}
	now := time.Now()
	l.expire(now)
	if a.outcome == granted {
		if p, ok := l.grant(a, sent, now); ok {
			l.plan = p
			return true
		}
		a.outcome = shortLease
		a.reason = "the engine grants a lease too short for the report interval: lower the interval, or raise its limit"
	}
	l.plan = l.fail(a, now)
	return true
}

// grant takes a lease. It reports false when the lease cannot be kept.
func (l *lease) grant(a answer, sent, now time.Time) (plan, bool) {
	t := l.registry.engines.timing
	length, renew, ok := t.granted(a.leaseMs, a.renewMs)
	if !ok {
		return plan{}, false
	}
	if l.expires.IsZero() {
		l.registry.leases.grants.Add(1)
	} else {
		l.registry.leases.renewals.Add(1)
	}
	// Both are measured from when we asked: the engine's own lease begins later, so ours never outlives it.
	l.hold(sent.Add(length))
	l.lost, l.failures = false, 0
	l.show(status{state: load.RegistrationLeased, http: a.http})
	at := sent.Add(t.renewIn(renew))
	// A slow answer must not push two requests together on the engine's side.
	if floor := now.Add(t.interval + t.interval/20); at.Before(floor) {
		at = floor
	}
	return plan{at: at, lead: at.Sub(now) - t.spacing(int(l.moved))}, true
}

// fail decides when to try again.
func (l *lease) fail(a answer, now time.Time) plan {
	t := l.registry.engines.timing
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
		wait = pause(int(l.failures), young)
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

// expire notices that the lease has run out.
func (l *lease) expire(now time.Time) {
	if l.expires.IsZero() || now.Before(l.expires) {
		return
	}
	l.hold(time.Time{})
	l.lost = true
	l.registry.leases.losses.Add(1)
	if s := l.status(); s.state != load.RegistrationLeased {
		l.show(s)
	}
}

// hold says until when a lease is held; zero: none is.
func (l *lease) hold(until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expires = until
}
