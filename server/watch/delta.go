package watch

import (
	"slices"

	"github.com/loadmonitor/loadmonitor/load"
)

// update is what a reader of one view must apply to come from a base to the snapshot's version.
type update struct {
	base    uint64        // 0: replace everything
	changed []*load.Entry // whole workers, sorted by id
	removed []uint32      // handles; some may never have been in the view
	marks   []mark
	state   bool // the fleet's state changed
}

// mark says that every fresh rank of a worker was received then or later (rule FR6).
type mark struct {
	handle uint32
	at     load.Instant
}

// empty reports whether the update changes nothing but the version.
func (u *update) empty() bool {
	return u.base != 0 && len(u.changed) == 0 && len(u.removed) == 0 && len(u.marks) == 0 && !u.state
}

// baseOf returns the version from which a reader that holds (epoch, version) can be brought to the snapshot, or 0 when it
// needs the full picture: it holds nothing, something of another epoch, something older than the removals that the
// snapshot remembers, or something that this snapshot does not know yet.
func baseOf(s *load.Snapshot, epoch string, version uint64) uint64 {
	if epoch != s.Epoch || version < s.RemovalsFrom || version > s.Version {
		return 0
	}
	return version
}

// delta compares the snapshot with what a reader of the view holds at base, a version of the same epoch that baseOf
// returned. It is a pure function: the same arguments give the same update, whatever the reader missed in between.
func delta(s *load.Snapshot, base uint64, v *view) update {
	if base == 0 {
		return full(s, v)
	}
	u := update{base: base, state: s.StateVersion > base}
	for e := range s.Workers.Since(base) {
		switch {
		case !v.matches(e.Worker):
			// It may have matched before. Which it did is not known without history, and removing twice does no harm.
			if e.DescribedVersion > base {
				u.removed = append(u.removed, e.Handle)
			}
			continue
		case e.ChangedVersion > base:
			u.changed = append(u.changed, e)
		}
		u.mark(e, v)
	}
	// Oldest first, so the ones after base are at the end.
	for _, r := range slices.Backward(s.Removals) {
		if r.Version <= base {
			break
		}
		u.removed = append(u.removed, r.Handle)
	}
	return u
}

func full(s *load.Snapshot, v *view) update {
	u := update{state: true}
	if v.all() {
		u.changed = make([]*load.Entry, 0, s.Workers.Len())
	}
	for e := range s.Workers.All() {
		if v.matches(e.Worker) {
			u.changed = append(u.changed, e)
			u.mark(e, v)
		}
	}
	return u
}

// mark adds the entry's refresh mark, if there is one since its content changed. A worker that is sent whole needs it as
// well, because its wire form dates from the last change. A mark speaks of fresh ranks: without one it says nothing.
func (u *update) mark(e *load.Entry, v *view) {
	if e.RefreshedVersion == 0 || v.noMarks {
		return
	}
	for i := range e.Ranks {
		if e.Ranks[i].Freshness == load.Fresh {
			u.marks = append(u.marks, mark{e.Handle, e.Refreshed})
			return
		}
	}
}
