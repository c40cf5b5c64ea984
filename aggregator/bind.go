package aggregator

import (
	"fmt"
	"slices"

	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/validator"
)

// binding is what a stream's first accepted report fixed: none of it may change within the stream, and neither may the source
// instance, which stands in the worker (rule ID2).
type binding struct {
	worker  *worker
	address string
	role    load.Role
}

// Release says that the stream has ended. It never changes freshness: time does. It is idempotent, and the release of an
// older stream does nothing to a newer one (rule ID5).
func (a *Aggregator) Release(st *load.Stream) {
	a.mu.Lock()
	b := a.streams[st]
	delete(a.streams, st)
	lost := ""
	if b != nil {
		w := b.worker
		if w.sockets != nil {
			delete(w.sockets.streams, st)
		}
		if w.stream == st {
			w.stream = nil
			lost = w.spec.ID
		}
	}
	a.mu.Unlock()
	if lost != "" && a.options.StreamLost != nil {
		a.options.StreamLost(lost)
	}
}

// findLocked returns the worker that an unbound stream's report is about, if it may feed it. A worker whose stream is
// turned away shows why, while nothing else feeds it.
func (a *Aggregator) findLocked(st *load.Stream, r *load.Report) (*worker, error) {
	if !a.discovered {
		return nil, load.ErrNotReady
	}
	_, origin, err := load.ParseAddress(r.Claim.Address)
	if err != nil {
		return nil, fmt.Errorf("worker_addr: %w: %w", err, load.ErrUnknownWorker)
	}
	w := a.workerAtLocked(origin)
	switch {
	case w == nil:
		return nil, fmt.Errorf("worker_addr %s: %w", origin, load.ErrUnknownWorker)
	case w.spec.Conflict != "":
		return nil, fmt.Errorf("worker_addr %s: %w", origin, load.ErrOriginConflict)
	case w.spec.Transport != st.Transport():
		return nil, a.turnAwayLocked(w, fmt.Errorf("%s instead of %s: %w", st.Transport(), w.spec.Transport, load.ErrWrongTransport))
	}
	if err := validator.Identity(w.spec, &r.Claim); err != nil {
		return nil, a.turnAwayLocked(w, err)
	}
	if slices.Contains(w.retired, r.SourceInstance) {
		if !w.conflict {
			w.conflict = true
			a.markDirtyLocked(w)
		}
		return nil, a.turnAwayLocked(w, fmt.Errorf("source instance %q: %w", r.SourceInstance, load.ErrRetiredSource))
	}
	return w, nil
}

// checkLocked compares a bound stream's report with what its first one fixed, and with registration, which may name
// other models by now.
func (a *Aggregator) checkLocked(b *binding, r *load.Report) error {
	if r.SourceInstance != b.worker.source || r.Claim.Address != b.address || r.Claim.Role != b.role {
		return a.turnAwayLocked(b.worker, load.ErrIdentityChanged)
	}
	if err := validator.Identity(b.worker.spec, &r.Claim); err != nil {
		return a.turnAwayLocked(b.worker, err)
	}
	return nil
}

// turnAwayLocked lets w show why a stream that is about it may not feed it, until a report is taken, and names w in the
// error.
func (a *Aggregator) turnAwayLocked(w *worker, err error) error {
	if text := err.Error(); w.turnedAway != text {
		w.turnedAway = text
		a.markDirtyLocked(w)
	}
	return fmt.Errorf("worker %s: %w", w.spec.ID, err)
}

// bindLocked makes st the stream that feeds w, ends the one that did, and lets a new source instance begin.
func (a *Aggregator) bindLocked(st *load.Stream, w *worker, r *load.Report) {
	newSource := w.source != r.SourceInstance
	if w.stream != nil {
		delete(a.streams, w.stream)
		if newSource {
			w.stream.End(fmt.Errorf("worker %s: %w", w.spec.ID, load.ErrSourceSuperseded))
		} else {
			w.stream.End(fmt.Errorf("worker %s: %w", w.spec.ID, load.ErrStreamSuperseded))
		}
		a.counts.takeovers.Add(1)
	}
	if newSource && w.source != "" {
		if len(w.retired) == maxRetired {
			w.retired = slices.Delete(w.retired, 0, 1)
		}
		w.retired = append(w.retired, w.source)
		w.restarts++
		a.doubtLocked(w)
		w.conflict = false
		for i := range w.state {
			w.state[i].prefillSeen = false
			w.state[i].forgetPrefill()
		}
		a.counts.restarts.Add(1)
	}
	w.source = r.SourceInstance
	w.stream = st
	address := r.Claim.Address
	if address == w.spec.URL {
		address = w.spec.URL // the text that is kept anyway
	}
	a.streams[st] = &binding{worker: w, address: address, role: r.Claim.Role}
}
