package aggregator

import (
	"container/heap"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// deadlines is a min-heap with one item per worker that has a rank which may go stale. Reports do not touch it: an item
// says when to look at the worker again, and the look finds the true deadline (rule SNAP3).
type deadlines []deadline

type deadline struct {
	at load.Instant
	w  *worker
}

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].at < d[j].at }
func (d deadlines) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *deadlines) Push(x any)        { *d = append(*d, x.(deadline)) }
func (d *deadlines) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	(*d)[last] = deadline{}
	*d = (*d)[:last]
	return x
}

// lookAhead batches looks at workers whose reports moved their deadline since they were queued.
const lookAhead = 50 * time.Millisecond

// queueLocked makes the publisher look at w at the given time, unless it will do so earlier anyway.
func (a *Aggregator) queueLocked(w *worker, at load.Instant) {
	if w.isQueued {
		return
	}
	w.isQueued = true
	heap.Push(&a.deadlines, deadline{at, w})
}

// expireLocked marks every worker with a rank that passed its deadline (rule FR4) and returns when to look again; 0: no
// worker is queued. At most maxBatch workers are looked at; more means: look again at once.
func (a *Aggregator) expireLocked(now load.Instant) load.Instant {
	horizon := now + load.Instant(lookAhead.Microseconds())
	for range maxBatch {
		if len(a.deadlines) == 0 {
			return 0
		}
		first := a.deadlines[0]
		if first.at > horizon {
			return first.at
		}
		w := first.w
		if w.removed {
			heap.Pop(&a.deadlines)
			continue
		}
		if w.expire(now) {
			a.counts.expired.Add(1)
			a.doubtLocked(w)
			a.markDirtyLocked(w)
		}
		next := w.deadline(now)
		switch {
		case next == 0:
			heap.Pop(&a.deadlines)
			w.isQueued = false
		case next == first.at:
			return first.at // the earliest of all is a true deadline ahead
		default:
			a.deadlines[0].at = next
			heap.Fix(&a.deadlines, 0)
		}
	}
	return now
}

// expire notes the ranks that passed their deadline and reports whether there is a new one.
func (w *worker) expire(now load.Instant) bool {
	found := false
	for i := range w.state {
		if s := &w.state[i]; s.Received != 0 && !s.expired && now >= s.Deadline(w.window) {
			s.expired, found = true, true
		}
	}
	return found
}
