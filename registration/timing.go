package registration

import (
	"math/rand/v2"
	"time"
)

const (
	// backoffFloor and backoffCeiling bound the pause after a failed request, before the jitter.
	backoffFloor   = 200 * time.Millisecond
	backoffCeiling = 5 * time.Second
	// youngCeiling bounds it while the failure is younger than a lease: an engine that restarts is back within seconds,
	// and its load should be too.
	youngCeiling  = time.Second
	backoffJitter = 500 * time.Millisecond

	// nudgeFloor is the least time between two requests when something else than the lease asks for one.
	nudgeFloor = time.Second
)

// timing holds the durations that the loops share.
type timing struct {
	interval, lease, timeout, slow, probe time.Duration
}

// granted returns what to make of the two numbers in an engine's answer, in milliseconds; what is missing, not positive
// or beyond what we asked for counts as told nothing. lease is how long to trust the grant, renew is when the next request
// is due at the latest. It reports false when a lease is so short that renewing it in time would starve the reports.
func (t timing) granted(leaseMs, renewMs int64) (lease, renew time.Duration, ok bool) {
	lease = t.lease
	if leaseMs > 0 && leaseMs < lease.Milliseconds() {
		lease = time.Duration(leaseMs) * time.Millisecond
	}
	renew = lease / 3
	if renewMs > 0 && renewMs < renew.Milliseconds() {
		renew = time.Duration(renewMs) * time.Millisecond
	}
	if renew > t.interval {
		return lease, renew, true
	}
	// Told to renew at or under the report interval. Each renewal moves the next report to one interval from then, so
	// renew as late as the lease itself allows.
	renew = lease / 3
	if renew <= t.interval {
		renew = (t.interval + lease) / 2
	}
	return lease, renew, lease > t.interval+t.interval/4
}

// renewIn draws when to renew: late enough for reports in between, before renew, and spread so that the renewals of many
// workers do not fall together.
func (t timing) renewIn(renew time.Duration) time.Duration {
	earliest := max(renew*3/4, (t.interval+renew)/2)
	return earliest + jitter((renew-earliest)*9/10)
}

// spacing is the least time between a renewal and the next one that a nudge brings about, when consecutive nudges have
// done so before.
func (t timing) spacing(consecutive int) time.Duration {
	return max(nudgeFloor, t.interval*3/2) << min(consecutive, 8)
}

// pause returns how long to wait after a failed request: twice as long after each, at random so that many workers do not
// come back together. failures counts those before this one, young says that the first of them is younger than a lease.
func pause(failures int, young bool) time.Duration {
	ceiling := backoffCeiling
	if young {
		ceiling = youngCeiling
	}
	d := min(backoffFloor<<min(failures, 8), ceiling)
	least := max(backoffFloor, d/2)
	return least + jitter(d-least) + jitter(backoffJitter)
}

// jitter returns a random duration in [0, d).
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}
