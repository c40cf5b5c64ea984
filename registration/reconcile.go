package registration

import (
	"context"
	"slices"
	"sync"

	"github.com/loadmonitor/loadmonitor/load"
)

// reconcile makes the world match what the sources say now: one list at the sink, one loop per worker. It compares full
// sets and patches nothing, so a wish that was missed or came twice does no harm.
func (r *Registry) reconcile(ctx context.Context, loops *sync.WaitGroup) {
	r.mu.Lock()
	finished := r.next
	r.next = newPass()
	all := r.targetsLocked()
	r.mu.Unlock()
	defer close(finished.done)

	targets, dropped := merge(all, r.opts.MaxWorkers)
	r.reportOverflow(dropped)

	var added, changed, removed, conflicts int
	entries := make([]*entry, len(targets))
	byID := make(map[string]*entry, len(targets))
	workers := make([]load.Worker, len(targets))
	var started []*lease
	for i, t := range targets {
		e := &entry{target: t}
		old := r.byID[t.worker.ID] // only this goroutine changes byID
		switch {
		case old == nil:
			added++
		case !old.target.describes(t):
			changed++
		}
		if t.worker.Conflict != "" {
			conflicts++
		}
		if old != nil && sameLease(old.target, t) {
			e.lease = old.lease
		} else {
			e.lease = newLease(ctx, r, t)
			started = append(started, e.lease)
		}
		entries[i], byID[t.worker.ID], workers[i] = e, e, t.worker
	}
	var ended []*lease
	for id, old := range r.byID {
		now := byID[id]
		if now == nil {
			removed++
		}
		if now == nil || now.lease != old.lease {
			old.lease.stop()
			ended = append(ended, old.lease)
		}
	}

	// The sink first: an engine that answers a new loop's request at once must find its worker known.
	if first := !r.discovered; first || !slices.EqualFunc(workers, r.published, load.Worker.Equal) {
		r.discovered = true
		r.published = slices.Clone(workers)
		r.opts.Sink.SetWorkers(workers)
	}

	r.mu.Lock()
	r.entries, r.byID = entries, byID
	for _, l := range ended {
		if !l.hasEnded() {
			r.ending[l.worker.ID] = l
		}
	}
	for _, l := range started {
		l.before = r.ending[l.worker.ID]
	}
	r.mu.Unlock()

	for _, l := range started {
		loops.Go(func() { l.run(); r.forget(l) })
	}
	if added+changed+removed > 0 {
		r.changes.added.Add(uint64(added))
		r.changes.changed.Add(uint64(changed))
		r.changes.removed.Add(uint64(removed))
		r.log.Info("workers changed", "workers", len(workers), "added", added, "changed", changed, "removed", removed,
			"in_conflict", conflicts)
	}
}

// forget drops a loop that has ended from those that a later loop of the same id would wait for.
func (r *Registry) forget(l *lease) {
	r.mu.Lock()
	if r.ending[l.worker.ID] == l {
		delete(r.ending, l.worker.ID)
	}
	r.mu.Unlock()
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

// sameLease reports whether the engine's lease for x serves y: everything is the same that decides whom we ask, and
// everything whose change makes the aggregator start the worker anew, because that ends the engine's stream and only the
// next request starts another. Zone and expected ranks may differ.
func sameLease(x, y *target) bool {
	return x.worker.URL == y.worker.URL && x.worker.Role == y.worker.Role && x.worker.Transport == y.worker.Transport &&
		x.worker.Conflict == y.worker.Conflict && slices.Equal(x.worker.Models, y.worker.Models) && x.tokenFile == y.tokenFile
}

// reportOverflow logs once per episode that discovery names more workers than are allowed.
func (r *Registry) reportOverflow(dropped int) {
	r.leftOut.Store(int64(dropped))
	if dropped > 0 && !r.overflow {
		r.log.Warn("more workers than allowed; the last ones by id are left out", "max_workers", r.opts.MaxWorkers, "left_out", dropped)
	}
	r.overflow = dropped > 0
}
