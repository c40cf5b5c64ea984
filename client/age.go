package client

import (
	"container/heap"
	"slices"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// ageing is a picture as the client's own clock leaves it while the monitor is silent: each rank goes stale when its
// freshness window ends. Whatever the monitor called anything but fresh stays as it is.
type ageing struct {
	clock   *clock
	reason  string
	table   table
	summary load.Summary
	due     deadlines // of the workers with something fresh
}

// newAgeing starts from p; nothing has aged yet.
func newAgeing(p *picture, c *clock, reason string) *ageing {
	a := &ageing{clock: c, reason: reason, table: p.table, summary: p.summary}
	for i := range a.table.n {
		if at, ok := a.deadline(i); ok {
			a.due = append(a.due, deadline{at, i})
		}
	}
	heap.Init(&a.due)
	return a
}

// next returns when the next rank goes stale; ok is false when nothing is fresh any more.
func (a *ageing) next() (at time.Time, ok bool) {
	if len(a.due) == 0 {
		return time.Time{}, false
	}
	return a.due[0].at, true
}

// advance makes stale what is due and reports whether there was anything.
func (a *ageing) advance(now time.Time) bool {
	return a.age(func(at time.Time) bool { return !at.After(now) })
}

// all makes everything stale and reports whether there was anything.
func (a *ageing) all() bool { return a.age(func(time.Time) bool { return true }) }

func (a *ageing) age(over func(at time.Time) bool) bool {
	var e *edit
	for len(a.due) > 0 && over(a.due[0].at) {
		if e == nil {
			e = a.table.edit()
		}
		i := a.due[0].place
		c := e.to.at(i)
		a.summary.Add(c.status.Freshness, -1)
		c.status = a.aged(c, over)
		a.summary.Add(c.status.Freshness, 1)
		e.set(i, c)
		a.table = e.to
		if at, ok := a.deadline(i); ok {
			a.due[0].at = at
			heap.Fix(&a.due, 0)
		} else {
			heap.Pop(&a.due)
		}
	}
	return e != nil
}

// deadline returns when the next rank of worker i goes stale. A fresh worker of which no rank was told has one
// deadline for all of them.
func (a *ageing) deadline(i int) (at time.Time, ok bool) {
	c := a.table.at(i)
	w := Worker{Status: c.status, refreshed: c.refreshed}
	for r := range w.Ranks {
		if w.Ranks[r].Freshness != load.Fresh {
			continue
		}
		if t := a.end(w, w.received(r)); !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	if !ok && w.Freshness == load.Fresh {
		return a.end(w, w.oldestFresh()), true
	}
	return at, ok
}

// end returns when the window of a report ends. A report of unknown age is over at once.
func (a *ageing) end(w Worker, received load.Instant) time.Time {
	at := a.clock.at(received)
	if at.IsZero() {
		return at
	}
	return at.Add(w.Window)
}

// aged returns a copy of a worker's status without the freshness that is over.
func (a *ageing) aged(c cell, over func(at time.Time) bool) *Status {
	w := Worker{Status: c.status, refreshed: c.refreshed}
	s := *c.status
	s.Ranks = slices.Clone(s.Ranks)
	s.oldest = 0
	for r := range s.Ranks {
		rank := &s.Ranks[r]
		if rank.Freshness != load.Fresh {
			continue
		}
		// A mark no longer counts for a rank that is not fresh, so what it said is kept in the rank.
		received := w.received(r)
		if over(a.end(w, received)) {
			rank.Freshness = load.Stale
			rank.Reason = a.reason
			rank.received = received
		} else if s.oldest == 0 || received < s.oldest {
			s.oldest = received
		}
	}
	if s.Freshness == load.Fresh {
		s.Freshness = load.Stale
		s.Reason = a.reason
	}
	return &s
}

// deadlines is a min-heap with one entry per worker.
type deadlines []deadline

type deadline struct {
	at    time.Time
	place int
}

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d deadlines) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *deadlines) Push(x any)        { *d = append(*d, x.(deadline)) }
func (d *deadlines) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	*d = (*d)[:last]
	return x
}
