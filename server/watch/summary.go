package watch

import (
	"sync"
	"weak"

	"github.com/loadmonitor/loadmonitor/load"
)

// summary counts the workers of the view. Where the same view was counted for base, it looks only at what differs: a look
// at every worker of a large fleet for one that changed would cost far more than the rest of the frame.
func (s *Service) summary(snap *load.Snapshot, base uint64, v *view) load.Summary {
	if v.all() {
		return snap.Summary
	}
	m := memoOf(snap)
	sum, counted := m.counted(v)
	if counted {
		return sum
	}
	if before := s.versions.get(base); before != nil && before.Epoch == snap.Epoch {
		if sum, counted = memoOf(before).counted(v); counted {
			v.recount(&sum, before.Workers, snap.Workers)
		}
	}
	if !counted {
		sum = v.summary(snap)
	}
	m.keepCount(v, sum)
	s.versions.add(snap)
	return sum
}

// recount makes the count of one table that of another.
func (v *view) recount(sum *load.Summary, before, after load.Table) {
	for was, is := range after.Diff(before) {
		if was != nil && is != nil && was.WorkerStatus == is.WorkerStatus { // a refresh mark
			continue
		}
		if was != nil && v.matches(was.Worker) {
			sum.Add(was.Freshness, -1)
		}
		if is != nil && v.matches(is.Worker) {
			sum.Add(is.Freshness, 1)
		}
	}
}

// summary counts the workers of the view.
func (v *view) summary(s *load.Snapshot) load.Summary {
	if v.all() {
		return s.Summary
	}
	var sum load.Summary
	// With few ids it is cheaper to look them up than to walk a large fleet.
	if n := len(v.ids); n > 0 && n*16 < s.Workers.Len() {
		for _, id := range v.ids {
			if e, _ := s.Workers.Find(id); e != nil && v.matches(e.Worker) {
				sum.Add(e.Freshness, 1)
			}
		}
		return sum
	}
	for e := range s.Workers.All() {
		if v.matches(e.Worker) {
			sum.Add(e.Freshness, 1)
		}
	}
	return sum
}

// versions finds snapshots by version. It keeps none of them alive: a snapshot that nobody holds is found until the next
// garbage collection, which is long enough for watchers that keep up, and costs those that do not nothing but speed.
type versions struct {
	mu     sync.Mutex
	newest [256]weak.Pointer[load.Snapshot] // guarded by mu; by version, modulo its length
}

func (r *versions) add(s *load.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.newest[s.Version%uint64(len(r.newest))] = weak.Make(s)
}

// get returns the snapshot of a version, or nil.
func (r *versions) get(version uint64) *load.Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.newest[version%uint64(len(r.newest))].Value(); s != nil && s.Version == version {
		return s
	}
	return nil
}
