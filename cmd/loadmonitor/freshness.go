package main

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

const (
	// linesPerLook bounds the lines about single workers in one look at the fleet; the rest are counted in one line.
	linesPerLook = 20
	// logPause follows a look that logged something, so that it also bounds the lines of a second.
	logPause = time.Second
	// lookPause follows a look that did not: a large fleet changes with every version, and nobody reads that fast.
	lookPause = 200 * time.Millisecond
)

// freshnessLog logs when a worker ceases to be of use to routers and when it is fresh again: one line each per episode, and
// one for each change from one trouble to another. Workers that never reported are registration's to log. Incomplete counts
// from the second look on: an engine whose ranks report one after the other begins with it.
type freshnessLog struct {
	log     *slog.Logger
	trouble map[string]*trouble // by worker id
	look    uint64
}

// trouble is the freshness that was logged last of a worker that is not fresh; unspecified: none yet.
type trouble struct {
	freshness load.Freshness
	look      uint64 // the newest that found the worker; one that was removed is forgotten
}

// followFreshness logs what becomes of the workers until ctx ends. current is wait-free.
func followFreshness(ctx context.Context, log *slog.Logger, current func() *load.Publication) {
	l := &freshnessLog{log: log, trouble: make(map[string]*trouble)}
	for {
		pub := current()
		pause := lookPause
		if l.see(pub.Snapshot) {
			pause = logPause
		}
		select {
		case <-ctx.Done():
			return
		case <-pub.Next:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// see logs how s differs from what was logged before, and reports whether it logged anything.
func (l *freshnessLog) see(s *load.Snapshot) bool {
	l.look++
	lines := 0
	rest := map[load.Freshness]int{}
	say := func(e *load.Entry) {
		if lines++; lines > linesPerLook {
			rest[e.Freshness]++
			return
		}
		id := slog.String("worker", e.Worker.ID)
		if e.Freshness == load.Fresh {
			l.log.Info("worker is fresh again", id)
			return
		}
		l.log.Warn("worker is not fresh", id, "freshness", e.Freshness.String(), "reason", e.Reason)
	}
	for e := range s.Workers.All() {
		switch e.Freshness {
		case load.Stale, load.Incomplete, load.Unreachable:
			t := l.trouble[e.Worker.ID]
			begins := t == nil
			if begins {
				t = &trouble{}
				l.trouble[e.Worker.ID] = t
			}
			t.look = l.look
			if begins && e.Freshness == load.Incomplete {
				continue
			}
			if t.freshness != e.Freshness {
				t.freshness = e.Freshness
				say(e)
			}
		case load.Fresh:
			if len(l.trouble) == 0 {
				continue
			}
			if t := l.trouble[e.Worker.ID]; t != nil && t.freshness != load.FreshnessUnspecified {
				say(e)
			}
		}
	}
	maps.DeleteFunc(l.trouble, func(_ string, t *trouble) bool { return t.look != l.look })
	if len(rest) > 0 {
		counts := make([]any, 0, 2*len(rest))
		for _, f := range slices.Sorted(maps.Keys(rest)) {
			counts = append(counts, f.String(), rest[f])
		}
		l.log.Warn("more workers changed", counts...)
	}
	return lines > 0
}
