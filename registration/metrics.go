package registration

import (
	"sync/atomic"

	"github.com/loadmonitor/loadmonitor/load"
)

// leaseCounts counts over all loops.
type leaseCounts struct {
	grants, renewals, losses, nudges atomic.Uint64
}

var stateNames = [...]string{
	load.RegistrationPending:   "pending",
	load.RegistrationLeased:    "leased",
	load.RegistrationRetrying:  "retrying",
	load.RegistrationRefused:   "refused",
	load.RegistrationConflict:  "conflict",
	load.RegistrationNotNeeded: "not_needed",
}

// Metrics returns the figures of this room. No label comes from a worker, so nothing is left behind when one goes.
func (r *Registry) Metrics() []load.Metric {
	counter := func(name, help string, c *atomic.Uint64) load.Metric {
		return load.Metric{Name: name, Help: help, Counter: true, Collect: func(yield func(float64, ...load.Label)) {
			yield(float64(c.Load()))
		}}
	}
	return []load.Metric{
		{Name: "registered_workers", Help: "Registered workers by how far the monitor got with their engine.", Collect: r.collectStates},
		{Name: "registered_workers_max", Help: "Bound on registered workers.", Collect: func(yield func(float64, ...load.Label)) {
			yield(float64(r.opts.MaxWorkers))
		}},
		{Name: "registration_changes_total", Help: "Workers added, changed and removed.", Counter: true, Collect: r.collectChanges},
		counter("discovery_invalid_total", "Discovered entries left out because they are not valid.", &r.invalid),
		{Name: "discovery_left_out", Help: "Discovered workers left out because the bound is reached.", Collect: func(yield func(float64, ...load.Label)) {
			yield(float64(r.leftOut.Load()))
		}},
		{Name: "registration_attempts_total", Help: "Attempts to make an engine report here, by what came of them.", Counter: true,
			Collect: r.collectAttempts},
		{Name: "server_info_probes_total", Help: "Requests for an engine's /server_info, by what came of them.", Counter: true,
			Collect: r.collectProbes},
		{Name: "registered_transports", Help: "Registered workers by the way that their load takes.", Collect: r.collectTransports},
		counter("leases_granted_total", "Leases that began.", &r.leases.grants),
		counter("leases_renewed_total", "Leases that were renewed in time.", &r.leases.renewals),
		counter("leases_lost_total", "Leases that ran out before they were renewed.", &r.leases.losses),
		counter("lease_nudges_total", "Renewals brought forward because the worker's reports ended.", &r.leases.nudges),
	}
}

func (r *Registry) collectStates(yield func(float64, ...load.Label)) {
	var counts [len(stateNames)]int
	for _, reg := range r.Registrations() {
		counts[reg.State]++
	}
	for state, name := range stateNames {
		if name != "" {
			yield(float64(counts[state]), load.Label{Name: "state", Value: name})
		}
	}
}

func (r *Registry) collectChanges(yield func(float64, ...load.Label)) {
	yield(float64(r.changes.added.Load()), load.Label{Name: "change", Value: "added"})
	yield(float64(r.changes.changed.Load()), load.Label{Name: "change", Value: "changed"})
	yield(float64(r.changes.removed.Load()), load.Label{Name: "change", Value: "removed"})
}

func (r *Registry) collectAttempts(yield func(float64, ...load.Label)) {
	for o, name := range outcomeNames {
		yield(float64(r.engines.posts[o].Load()), load.Label{Name: "outcome", Value: name})
	}
}

func (r *Registry) collectProbes(yield func(float64, ...load.Label)) {
	for o, name := range outcomeNames {
		switch outcome(o) {
		case granted:
			name = "answered"
		case owned, unprocessed, dependency, shortLease, unadvertised: // of the lease alone
			continue
		}
		yield(float64(r.engines.probes[o].Load()), load.Label{Name: "outcome", Value: name})
	}
}

func (r *Registry) collectTransports(yield func(float64, ...load.Label)) {
	counts := make(map[load.Transport]int)
	r.mu.Lock()
	entries := r.entries
	r.mu.Unlock()
	for _, e := range entries {
		counts[e.choice.worker.Transport]++
	}
	for _, t := range []load.Transport{load.TransportUnspecified, load.TransportPush, load.TransportZMQ} {
		yield(float64(counts[t]), load.Label{Name: "transport", Value: t.String()})
	}
}
