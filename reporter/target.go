package reporter

import (
	"context"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// target is one monitor under one lease, with the task that keeps a stream to it.
type target struct {
	// immutable
	r       *Reporter
	addr    netip.AddrPort
	worker  string // worker_addr: who may renew
	cancel  context.CancelFunc
	renewed chan struct{} // one slot: the registration changed
	lease   *time.Timer   // calls expire; reset under r.mu

	// guarded by r.mu
	reg        registration
	state      TargetState
	sent       uint64
	skipped    uint64
	reconnects uint64
	lastError  string

	// used only by run
	troubled bool // an episode of trouble was logged and has not ended
}

// registration is what the last POST asked for.
type registration struct {
	interval time.Duration
	anchor   time.Time // when it was received: the next report is due one interval later
	expires  time.Time
	revision uint64 // rises by one per POST
}

// verdict is what follows the end of a stream.
type verdict uint8

const (
	reconnect    verdict = iota // with backoff
	awaitRenewal                // the monitor must first say that something changed
	endTask                     // until the target is registered anew
)

// judge reads the code with which a stream ended, as released engines do; ending a stream with OK ends the task too.
func judge(err error) verdict {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return reconnect
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		return awaitRenewal
	}
	return endTask
}

// run keeps a stream to the target until ctx ends or the monitor ends the task.
func (t *target) run(ctx context.Context) {
	var b backoff
	for {
		begun := time.Now()
		err := t.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		lived := time.Since(begun)
		if lived >= steady {
			b.reset()
		}
		next := judge(err)
		seen := t.endStream(err, next)
		t.logEnd(err, next)
		switch next {
		case endTask:
			return
		case awaitRenewal:
			// A poster without measure must not make this engine dial without measure.
			if !t.waitRenewal(ctx, seen) || !sleep(ctx, backoffMin-time.Since(begun)) {
				return
			}
		case reconnect:
			if !sleep(ctx, b.next()) {
				return
			}
		}
		t.beginReconnect()
	}
}

// logEnd writes one line per episode: the first end of a stream until one has been steady again.
func (t *target) logEnd(err error, next verdict) {
	if t.troubled {
		return
	}
	t.troubled = true
	then := map[verdict]string{
		reconnect:    "reconnecting with backoff",
		awaitRenewal: "waiting for the next registration renewal",
		endTask:      "ended until the target is registered anew",
	}[next]
	t.r.logger.Warn("report stream ended", "target", t.addr.String(), "worker", t.worker,
		"code", status.Code(err).String(), "error", reasonOf(err), "then", then)
}

// logSteady ends the episode.
func (t *target) logSteady() {
	if t.troubled {
		t.troubled = false
		t.r.logger.Info("report stream is steady again", "target", t.addr.String(), "worker", t.worker)
	}
}

// waitRenewal returns true once the registration is newer than revision seen, false when ctx ends.
func (t *target) waitRenewal(ctx context.Context, seen uint64) bool {
	for t.registration().revision == seen {
		select {
		case <-ctx.Done():
			return false
		case <-t.renewed:
		}
	}
	return true
}

// sleep waits for d and returns true, or returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// expire is called by the lease's timer. A renewal that came first has moved the end.
func (t *target) expire() {
	t.r.mu.Lock()
	over := !time.Now().Before(t.reg.expires)
	if over && t.r.targets[t.addr] == t {
		// From now on the target is free for whoever registers it next.
		delete(t.r.targets, t.addr)
	}
	t.r.mu.Unlock()
	if over {
		t.cancel()
	}
}

func (t *target) renewLocked(now time.Time, req StartRequest) {
	t.reg = registration{
		interval: req.ReportInterval,
		anchor:   now,
		expires:  now.Add(req.LeaseTTL),
		revision: t.reg.revision + 1,
	}
	t.lease.Reset(req.LeaseTTL)
	select {
	case t.renewed <- struct{}{}:
	default:
	}
}

func (t *target) registration() registration {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	return t.reg
}
