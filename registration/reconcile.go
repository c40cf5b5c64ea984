package registration

import (
	"slices"
	"unique"

	"github.com/loadmonitor/loadmonitor/load"
)

// reconcile makes the world match what the sources and the engines say now: one list at the sink, one list at the dialer,
// two loops per worker. It compares full sets and patches nothing, so a wish that was missed or came twice does no harm.
func (r *Registry) reconcile() {
	r.mu.Lock()
	finished := r.next
	r.next = newPass()
	all := r.targetsLocked()
	r.mu.Unlock()
	defer close(finished.done)

	targets, dropped := merge(all, r.opts.MaxWorkers)
	r.reportOverflow(dropped)

	var added, changed, removed, conflicts, learned int
	entries := make([]*entry, len(targets))
	choices := make([]*choice, len(targets))
	workers := make([]*load.Worker, len(targets))
	var leases []*lease // that begin
	var probes []*probe
	gone := func(old *entry) {
		removed++
		r.probeLoops.stop(&old.probe.loop)
		r.leaseLoops.stop(&old.lease.loop)
	}
	before := r.entries // only this goroutine replaces them
	for i, t := range targets {
		for len(before) > 0 && before[0].target.worker.ID < t.worker.ID {
			gone(before[0])
			before = before[1:]
		}
		var old *entry
		if len(before) > 0 && before[0].target.worker.ID == t.worker.ID {
			old, before = before[0], before[1:]
		}
		e := r.entry(t, old)
		if old == nil || old.probe != e.probe {
			probes = append(probes, e.probe)
		}
		if old != nil && sameLease(old, e) {
			e.lease = old.lease
		} else {
			e.lease = newLease(r, t, e.choice)
			leases = append(leases, e.lease)
		}
		switch {
		case old == nil:
			added++
		case !old.target.describes(t):
			changed++
		case old.choice != e.choice:
			learned++
		}
		r.logTransport(old, e)
		if t.worker.Conflict != "" {
			conflicts++
		}
		if old != nil && old.probe != e.probe {
			r.probeLoops.stop(&old.probe.loop)
		}
		if old != nil && old.lease != e.lease {
			r.leaseLoops.stop(&old.lease.loop)
		}
		entries[i], workers[i], choices[i] = e, &e.choice.worker, e.choice
	}
	for _, old := range before {
		gone(old)
	}

	// The sink first: an engine that answers a new loop's request at once must find its worker known.
	if first := !r.discovered; first || !slices.EqualFunc(choices, r.published, sameWorker) {
		r.discovered = true
		r.published = choices
		r.opts.Sink.SetWorkers(workers)
	}
	r.hand(choices)

	r.mu.Lock()
	r.entries = entries
	r.mu.Unlock()

	for _, l := range leases {
		r.leaseLoops.start(&l.loop)
	}
	for _, p := range probes {
		r.probeLoops.start(&p.loop)
	}
	if added+changed+removed > 0 {
		r.changes.added.Add(uint64(added))
		r.changes.changed.Add(uint64(changed))
		r.changes.removed.Add(uint64(removed))
		r.log.Info("workers changed", "workers", len(workers), "added", added, "changed", changed, "removed", removed,
			"in_conflict", conflicts)
	}
	if learned > 0 {
		r.log.Debug("engines said what they are", "workers", learned)
	}
}

// targetsLocked lists what every source says.
func (r *Registry) targetsLocked() []*target {
	all := make([]*target, 0, r.claimedLocked())
	all = append(all, r.static.targets...)
	for _, t := range r.api {
		all = append(all, t)
	}
	for _, set := range r.found {
		all = append(all, set.targets...)
	}
	return all
}

// claimedLocked counts what targetsLocked lists.
func (r *Registry) claimedLocked() int {
	n := len(r.static.targets) + len(r.api)
	for _, set := range r.found {
		n += len(set.targets)
	}
	return n
}

// entry makes the entry of a worker, with what goes on of old, the one of the same id before, if any. Its lease is not set.
func (r *Registry) entry(t *target, old *entry) *entry {
	e := &entry{target: t}
	switch {
	case old != nil && sameProbe(old.target, t):
		e.probe = old.probe
	case old != nil && old.target.worker.URL == t.worker.URL:
		e.probe = newProbe(r, t, old.probe.state())
	default:
		e.probe = newProbe(r, t, unique.Make(known{}))
	}
	e.known = e.probe.state()
	if old != nil && old.known == e.known && old.target.describes(t) {
		e.choice = old.choice
	} else {
		e.choice = choose(t, e.known.Value(), &r.opts)
	}
	return e
}

// sameWorker reports whether the sink gets the same for both.
func sameWorker(x, y *choice) bool { return x == y || x.worker.Equal(y.worker) }

// sameLease reports whether the engine's lease for x serves y: everything is the same that decides whom we ask, and
// everything whose change makes the aggregator start the worker anew, because that ends the engine's stream and only the
// next request starts another. Zone and expected ranks may differ.
func sameLease(x, y *entry) bool {
	v, w := &x.choice.worker, &y.choice.worker
	return v.URL == w.URL && v.Role == w.Role && v.Transport == w.Transport && v.Conflict == w.Conflict &&
		slices.Equal(v.Models, w.Models) && x.target.tokenFile == y.target.tokenFile && x.choice.note == y.choice.note
}

// logTransport says when a worker that was fed in one way is fed in another.
func (r *Registry) logTransport(old, now *entry) {
	if old == nil || old.choice == now.choice {
		return
	}
	was, is := &old.choice.worker, &now.choice.worker
	if was.Transport != is.Transport && was.Transport != load.TransportUnspecified && is.Transport != load.TransportUnspecified {
		r.log.Info("the worker's load comes another way", "worker", is.ID, "reason", is.TransportReason)
	}
}

// reportOverflow logs once per episode that discovery names more workers than are allowed.
func (r *Registry) reportOverflow(dropped int) {
	r.leftOut.Store(int64(dropped))
	if dropped > 0 && !r.overflow {
		r.log.Warn("more workers than allowed; the last ones by id are left out", "max_workers", r.opts.MaxWorkers, "left_out", dropped)
	}
	r.overflow = dropped > 0
}
