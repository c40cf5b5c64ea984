package client

import (
	"iter"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// View is the fleet, or the part of it that passes the client's filter, at one moment. It is immutable: read it, keep it,
// share it, never write it. No method waits or locks; look-ups allocate nothing.
type View struct {
	// Epoch is one process life of the monitor, opaque. Empty: no picture has arrived yet.
	Epoch string
	// Version is the monitor's; it never falls within an epoch. Versions of different epochs are not comparable. Views of
	// one version can differ: when the link goes down, and by what the client's own clock then ages out.
	Version uint64
	// State tells an empty fleet apart from one that is not known yet. It is about the fleet, whatever the filter.
	State load.FleetState
	// Summary counts the workers of this view by freshness.
	Summary load.Summary
	// Link is how the monitor was heard.
	Link Link

	table   table
	index   *index
	clock   *clock
	changed chan struct{}
}

// Link is the state of the connection to the monitor as a view saw it.
type Link struct {
	// Up: freshness is the monitor's word. Otherwise the monitor has not been heard for longer than the link timeout,
	// or never, and ranks go stale by the client's own clock.
	Up bool
	// Since is when Up last changed.
	Since time.Time
	// Heard is when the newest frame that proves the monitor alive arrived. The zero time: never.
	Heard time.Time
	// Err is why the link is down; nil when it is up. See ErrNotConnected, ErrSilent and ErrStopped; once a try to reach
	// the monitor has failed, it also wraps that failure (see ErrContract; other errors are gRPC's) and names the monitor.
	Err error
	// Trouble is why the newest stream ended or could not be opened, with the monitor's address, while no other stream has
	// delivered since; nil otherwise. Where the link is up it is an interruption that the link timeout covers, which alone
	// does not close View.Changed.
	Trouble error
}

// Age returns how long ago the monitor was last heard; ok is false when it never was.
func (l Link) Age(now time.Time) (age time.Duration, ok bool) {
	if l.Heard.IsZero() {
		return 0, false
	}
	return max(0, now.Sub(l.Heard)), true
}

// emptyIndex serves look-ups before the first picture.
var emptyIndex, _ = newIndex(nil)

// Complete reports whether there is at least one worker and every worker is fresh, so that a router can decide
// all-or-nothing (rule SNAP2).
func (v *View) Complete() bool { return v.Summary.Complete() }

// Len returns the number of workers.
func (v *View) Len() int { return v.table.n }

// All yields the workers in order of id.
func (v *View) All() iter.Seq[Worker] {
	return func(yield func(Worker) bool) {
		for i := range v.table.n {
			if !yield(v.at(i)) {
				return
			}
		}
	}
}

// Worker returns the worker with the id.
func (v *View) Worker(id string) (w Worker, ok bool) {
	i, ok := v.index.byID[id]
	if !ok {
		return Worker{}, false
	}
	return v.at(int(i)), true
}

// ByHandle returns the worker with the handle, which a Worker of the same epoch has told.
func (v *View) ByHandle(handle uint32) (w Worker, ok bool) {
	i := v.index.byHandle.find(handle)
	if i < 0 {
		return Worker{}, false
	}
	return v.at(i), true
}

// ByURL returns the worker with the URL. The monitor's own spelling, scheme://host:port, is found at once; any other
// spelling of the same origin is normalised first, which allocates. Workers that share a URL are in conflict and none of
// them is fed; the first by id is returned.
func (v *View) ByURL(url string) (w Worker, ok bool) {
	i, ok := v.index.byURL[url]
	if !ok {
		normal, _, err := load.ParseAddress(url)
		if err != nil || normal == url {
			return Worker{}, false
		}
		if i, ok = v.index.byURL[normal]; !ok {
			return Worker{}, false
		}
	}
	return v.at(int(i)), true
}

// LinkBound returns how far the link's delay can shift local times; Worker's times are already less it.
func (v *View) LinkBound() time.Duration { return v.clock.bound() }

// Changed returns a channel that is closed when a newer view is there. What changes nothing but Link.Heard or Link.Trouble
// does not close it: heartbeats, and interruptions while the link is up. View and channel belong together, so nothing is missed between reading the one and waiting for the
// other.
func (v *View) Changed() <-chan struct{} { return v.changed }

func (v *View) at(i int) Worker {
	c := v.table.at(i)
	return Worker{Status: c.status, refreshed: c.refreshed, clock: v.clock}
}
