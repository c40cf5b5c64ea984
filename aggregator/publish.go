package aggregator

import (
	"context"
	"slices"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// publisher is what Run alone uses.
type publisher struct {
	next        chan struct{} // closed with the next publication
	beat        uint64
	summary     load.Summary
	lastPublish load.Instant
	lastRefresh load.Instant
	lastBeat    load.Instant

	// Spare lists that change places with Aggregator.dirty and refreshed.
	dirty, refreshed []*worker
}

// Run publishes until ctx is done. It must run once.
func (a *Aggregator) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		case <-timer.C:
		}
		now := a.Now()
		timer.Reset(time.Duration(max(0, a.step(now)-now)) * time.Microsecond)
	}
}

// step does what is due at now and returns when something is due next.
func (a *Aggregator) step(now load.Instant) load.Instant {
	p := &a.publisher
	a.mu.Lock()
	expiry := a.expireLocked(now)
	content := len(a.dirty) > 0 || a.reordered
	a.looks = content
	marks := len(a.refreshed) > 0
	doubts := a.takeDoubtsLocked()
	a.mu.Unlock()
	a.tellDoubts(doubts)

	publishAt := p.lastPublish + micros(a.options.PublishInterval)
	refreshAt := max(publishAt, p.lastRefresh+micros(a.options.RefreshInterval))
	if content && now >= publishAt || marks && now >= refreshAt {
		a.publish(marks && now >= refreshAt)
		p.lastPublish = now
		content = true // what comes from now on is looked at then, without a wake-up
		if marks && now >= refreshAt {
			p.lastRefresh, marks = now, false
		}
		publishAt = now + micros(a.options.PublishInterval)
	}
	beatAt := p.lastBeat + micros(a.options.Heartbeat)
	if now >= beatAt {
		p.beat++
		p.lastBeat = now
		beatAt = now + micros(a.options.Heartbeat)
		a.swap(a.Current().Snapshot)
	}

	next := beatAt
	if expiry != 0 {
		next = min(next, expiry)
	}
	if content {
		next = min(next, publishAt)
	}
	if marks {
		next = min(next, refreshAt)
	}
	return next
}

func micros(d time.Duration) load.Instant { return load.Instant(d.Microseconds()) }

// swap publishes s and wakes whoever waits for it.
func (a *Aggregator) swap(s *load.Snapshot) {
	p := &a.publisher
	superseded := p.next
	p.next = make(chan struct{})
	a.current.Store(&load.Publication{Snapshot: s, Beat: p.beat, Next: p.next})
	close(superseded)
}

// publish makes the next version of what is dirty now, and of the refresh marks if they are due.
func (a *Aggregator) publish(marks bool) {
	p := &a.publisher
	last := a.Current().Snapshot
	s := &load.Snapshot{
		Epoch: a.epoch, Version: last.Version + 1, State: last.State, StateVersion: last.StateVersion,
		Removals: last.Removals, RemovalsFrom: last.RemovalsFrom,
	}
	edit := last.Workers.Edit(s.Version)

	a.mu.Lock()
	dirty := a.dirty
	a.dirty, a.looks = p.dirty[:0], true
	var refreshed []*worker
	if marks {
		refreshed = a.refreshed
		a.refreshed = p.refreshed[:0]
	}
	var order []*worker
	if a.reordered {
		order = a.order
		a.reordered = false
		setState(s, a.discovered, len(order))
	}
	removed := a.removed
	a.removed = nil
	a.mu.Unlock()

	for _, w := range removed {
		w.gone = true
		if w.entry != nil {
			p.summary.Add(w.counted, -1)
		}
	}
	set := func(w *worker, e *load.Entry) {
		if w.entry != nil {
			p.summary.Add(w.counted, -1)
		}
		p.summary.Add(w.freshness, 1)
		w.entry, w.counted = e, w.freshness
		if order == nil {
			edit.Set(w.index, e)
		}
	}
	a.each(dirty, func(w *worker, now load.Instant) {
		w.isDirty = false
		if !w.gone {
			set(w, a.buildLocked(w, s.Version, now))
		}
	})
	a.each(refreshed, func(w *worker, now load.Instant) {
		w.isMarked = false
		if w.gone || w.isDirty || w.entry == nil || w.entry.ChangedVersion == s.Version {
			return
		}
		e := a.markLocked(w, s.Version)
		if e.Refreshed == 0 {
			// Marks vouch for fresh ranks only. Where there is none, the new receipts are content.
			e = a.buildLocked(w, s.Version, now)
		}
		set(w, e)
	})
	if order == nil {
		s.Workers = edit.Table()
	} else {
		s.Workers = tableOf(order)
	}
	remember(s, removed)
	s.Summary = p.summary
	s.CapturedAt = time.Now()
	s.Captured = instant(s.CapturedAt.Sub(a.start))

	// The lists are kept for their capacity, not for the workers in them.
	clear(dirty)
	p.dirty = dirty[:0]
	if marks {
		clear(refreshed)
		p.refreshed = refreshed[:0]
	}
	a.swap(s)
	a.counts.versions.Add(1)
}

// each calls f for every worker, holding the lock for at most maxBatch of them at a time.
func (a *Aggregator) each(workers []*worker, f func(*worker, load.Instant)) {
	for batch := range slices.Chunk(workers, maxBatch) {
		a.mu.Lock()
		now := a.Now()
		for _, w := range batch {
			f(w, now)
		}
		a.mu.Unlock()
	}
}

// tableOf builds the table of a changed order; every worker in it has an entry.
func tableOf(order []*worker) load.Table {
	entries := make([]*load.Entry, len(order))
	for i, w := range order {
		w.index = i
		entries[i] = w.entry
	}
	return load.NewTable(entries)
}

// setState derives the state of the fleet (rule SNAP5).
func setState(s *load.Snapshot, discovered bool, workers int) {
	state := load.FleetWarmingUp
	switch {
	case discovered && workers > 0:
		state = load.FleetReady
	case discovered:
		state = load.FleetNoWorkers
	}
	if state != s.State {
		s.State, s.StateVersion = state, s.Version
	}
}

// remember adds removals to the bounded list that resuming readers need.
func remember(s *load.Snapshot, removed []*worker) {
	if len(removed) == 0 {
		return
	}
	list := slices.Clone(s.Removals)
	for _, w := range removed {
		list = append(list, load.Removal{Handle: w.handle, Version: s.Version})
	}
	if over := len(list) - maxRemovals; over > 0 {
		s.RemovalsFrom = list[over-1].Version
		list = list[over:]
	}
	s.Removals = list
}
