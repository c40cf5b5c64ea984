package aggregator

import (
	"slices"
	"strings"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// SetWorkers makes the registered workers exactly these (rule ID1); the first call ends warming_up. A worker that is not
// among them is gone in the next version and its stream ends (ID7); one that is no longer the same endpoint or role
// starts anew under a new handle. Of two entries with one id the first counts; of two with one origin neither is fed
// (ID3). The workers are kept and shared with snapshots: nobody may change them.
func (a *Aggregator) SetWorkers(workers []*load.Worker) {
	set := slices.Clone(workers)
	slices.SortStableFunc(set, func(x, y *load.Worker) int { return strings.Compare(x.ID, y.ID) })
	set = slices.CompactFunc(set, func(x, y *load.Worker) bool { return x.ID == y.ID })
	markConflicts(set)

	a.mu.Lock()
	defer a.mu.Unlock()
	order := make([]*worker, 0, len(set))
	reordered := !a.discovered
	before := a.order
	for _, spec := range set {
		for len(before) > 0 && before[0].spec.ID < spec.ID {
			a.removeLocked(before[0])
			reordered, before = true, before[1:]
		}
		var w *worker
		if len(before) > 0 && before[0].spec.ID == spec.ID {
			w, before = before[0], before[1:]
		}
		if w != nil && !sameEndpoint(w.spec, spec) {
			a.removeLocked(w)
			w = nil
		}
		if w == nil {
			a.handles++
			w = &worker{spec: spec, handle: a.handles, window: a.windowOf(spec.Transport), described: true}
			w.dialRanksLocked()
			reordered = true
			a.markDirtyLocked(w)
		} else if was := w.spec; !was.Equal(*spec) {
			w.described = w.described || describedDiffers(was, spec)
			w.spec, w.window = spec, a.windowOf(spec.Transport)
			w.dialRanksLocked()
			a.markDirtyLocked(w)
		} else {
			w.spec = spec // registration lets go of the one before
		}
		order = append(order, w)
	}
	for _, w := range before {
		a.removeLocked(w)
		reordered = true
	}
	a.order, a.discovered = order, true
	if reordered {
		a.byOrigin = slices.Clone(order)
		slices.SortFunc(a.byOrigin, func(x, y *worker) int { return strings.Compare(x.spec.Origin, y.spec.Origin) })
		a.reordered = true
		a.wakeUp()
	}
}

// workerLocked returns the worker with the id; nil: there is none.
func (a *Aggregator) workerLocked(id string) *worker {
	i, found := slices.BinarySearchFunc(a.order, id, func(w *worker, id string) int { return strings.Compare(w.spec.ID, id) })
	if !found {
		return nil
	}
	return a.order[i]
}

// workerAtLocked returns the worker with the origin; nil: there is none. Those that share one have a conflict, each of them.
func (a *Aggregator) workerAtLocked(origin string) *worker {
	i, found := slices.BinarySearchFunc(a.byOrigin, origin, func(w *worker, origin string) int { return strings.Compare(w.spec.Origin, origin) })
	if !found {
		return nil
	}
	return a.byOrigin[i]
}

// markConflicts gives workers that share an origin a conflict, where registration has not said so in its own words.
func markConflicts(set []*load.Worker) {
	seen := make(map[string]int, len(set)) // position of the first with the origin
	for i := range set {
		first, twice := seen[set[i].Origin]
		if !twice {
			seen[set[i].Origin] = i
			continue
		}
		for _, j := range []int{first, i} {
			if set[j].Conflict == "" {
				w := *set[j] // whose it is does not change
				w.Conflict = "more than one worker is registered at " + w.Origin + ": remove all but one"
				set[j] = &w
			}
		}
	}
}

func (a *Aggregator) windowOf(t load.Transport) time.Duration {
	if t == load.TransportZMQ {
		return a.options.ZMQWindow
	}
	return a.options.Window
}

// SetNote lets a worker show registration's trouble with its engine while it is not fresh; "" clears it. An unknown id
// is ignored: the worker left in the meantime.
func (a *Aggregator) SetNote(id, note string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.workerLocked(id); w != nil && w.note != note {
		w.note = note
		if w.freshness != load.Fresh {
			a.markDirtyLocked(w)
		}
	}
}

// sameEndpoint reports whether reports that were taken for x may stand for y: same endpoint, role, transport and
// conflict, and no other models where both name some. For a worker without a transport none were taken.
func sameEndpoint(x, y *load.Worker) bool {
	if x.URL != y.URL || x.Origin != y.Origin || x.Conflict != y.Conflict {
		return false
	}
	return x.Transport == load.TransportUnspecified || x.Role == y.Role && x.Transport == y.Transport &&
		(len(x.Models) == 0 || len(y.Models) == 0 || slices.Equal(x.Models, y.Models))
}

// describedDiffers reports whether a filter may judge the two differently.
func describedDiffers(x, y *load.Worker) bool {
	return x.Zone != y.Zone || x.Role != y.Role || !slices.Equal(x.Models, y.Models)
}

// removeLocked ends what feeds the worker and lists it as gone.
func (a *Aggregator) removeLocked(w *worker) {
	w.removed = true
	if w.stream != nil {
		delete(a.streams, w.stream)
		w.stream.End(load.ErrWorkerRemoved)
		w.stream = nil
	}
	if w.sockets != nil {
		for st := range w.sockets.streams {
			delete(a.streams, st)
			st.End(load.ErrWorkerRemoved)
		}
		clear(w.sockets.streams)
	}
	a.removed = append(a.removed, w)
}
