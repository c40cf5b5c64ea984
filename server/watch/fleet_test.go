package watch

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// fleet builds snapshots by hand, the way the aggregator publishes them: states are replaced, never changed, and carry the
// version at which they did what.
type fleet struct {
	epoch   string
	version uint64 // of the last snapshot
	now     load.Instant

	entries    map[string]*load.Entry
	state      load.FleetState
	stateAt    uint64
	removals   []load.Removal
	remembers  int // removals kept; 0: all
	removedTil uint64
	handles    uint32
}

func newFleet() *fleet {
	return &fleet{epoch: "epoch-1", entries: make(map[string]*load.Entry), state: load.FleetWarmingUp, stateAt: 1, now: 1_000_000}
}

// next is the version that the changes made now will first show in.
func (f *fleet) next() uint64 { return f.version + 1 }

// put adds the worker or changes it.
func (f *fleet) put(id string, change func(*load.WorkerStatus)) {
	f.setState(load.FleetReady)
	ws := &load.WorkerStatus{
		Worker:    &load.Worker{ID: id, URL: "http://" + id, Origin: id, Role: load.RoleRegular, Transport: load.TransportPush},
		Freshness: load.Missing,
		Window:    3 * time.Second,
	}
	var old load.Worker
	if e := f.entries[id]; e == nil {
		f.handles++
		ws.Handle = f.handles
	} else {
		o := e.WorkerStatus
		old = *o.Worker
		ws = &load.WorkerStatus{
			Worker: new(old), Handle: o.Handle, Freshness: o.Freshness, Reason: o.Reason, Anomalies: o.Anomalies,
			SourceInstance: o.SourceInstance, Sequence: o.Sequence, Restarts: o.Restarts, LastError: o.LastError,
			Window: o.Window, Aggregate: o.Aggregate, Ranks: slices.Clone(o.Ranks), RankReasons: slices.Clone(o.RankReasons),
			DescribedVersion: o.DescribedVersion,
		}
	}
	if change != nil {
		change(ws)
	}
	ws.ChangedVersion = f.next()
	if ws.DescribedVersion == 0 || !old.Equal(*ws.Worker) {
		ws.DescribedVersion = f.next()
	}
	f.entries[id] = &load.Entry{WorkerStatus: ws}
}

// report changes the worker's load: rank r gets running requests loads[r], all of it fresh and received now.
func (f *fleet) report(id string, loads ...int64) {
	f.put(id, func(ws *load.WorkerStatus) {
		ws.Freshness, ws.Reason, ws.SourceInstance = load.Fresh, "", "source-of-"+id
		ws.Sequence++
		ws.Ranks, ws.RankReasons = nil, nil
		ws.Aggregate = load.Aggregate{RankCount: uint32(len(loads))}
		var sum int64
		for r, n := range loads {
			rank := load.Rank{Load: load.RankLoad{DPRank: int32(r)}, Freshness: load.Fresh, Received: f.now, SampleAgeMs: -1}
			rank.Load.SetInt(load.NumRunningReqs, n)
			rank.Load.SetInt(load.NumWaitingReqs, n)
			ws.Ranks = append(ws.Ranks, rank)
			sum += n
		}
		ws.Aggregate.SetInt(load.SumRunningReqs, sum)
		ws.Aggregate.SetInt(load.SumWaitingReqs, sum)
	})
}

// refresh is a report with unchanged values.
func (f *fleet) refresh(id string) {
	e := f.entries[id]
	f.entries[id] = &load.Entry{WorkerStatus: e.WorkerStatus, RefreshedVersion: f.next(), Refreshed: f.now}
}

func (f *fleet) expire(id string) {
	f.put(id, func(ws *load.WorkerStatus) {
		ws.Freshness, ws.Reason = load.Stale, "no report within 3s"
		ws.RankReasons = slices.Repeat([]string{"no report within 3s"}, len(ws.Ranks))
		for i := range ws.Ranks {
			ws.Ranks[i].Freshness = load.Stale
		}
	})
}

func (f *fleet) remove(id string) {
	f.removals = append(f.removals, load.Removal{Handle: f.entries[id].Handle, Version: f.next()})
	delete(f.entries, id)
	if len(f.entries) == 0 {
		f.setState(load.FleetNoWorkers)
	}
	if n := len(f.removals) - f.remembers; f.remembers > 0 && n > 0 {
		f.removedTil = f.removals[n-1].Version
		f.removals = slices.Clone(f.removals[n:])
	}
}

func (f *fleet) setState(s load.FleetState) {
	if f.state != s {
		f.state, f.stateAt = s, f.next()
	}
}

// publish returns the next version and moves the clock on by a millisecond.
func (f *fleet) publish() *load.Snapshot {
	f.version++
	f.now += 1000
	s := &load.Snapshot{
		Epoch: f.epoch, Version: f.version, CapturedAt: time.UnixMilli(1_700_000_000_000 + int64(f.now)/1000).UTC(), Captured: f.now,
		State: f.state, StateVersion: f.stateAt, Removals: slices.Clone(f.removals), RemovalsFrom: f.removedTil,
	}
	var list []*load.Entry
	for _, id := range slices.Sorted(maps.Keys(f.entries)) {
		list = append(list, f.entries[id])
		s.Summary.Add(f.entries[id].Freshness, 1)
	}
	s.Workers = load.NewTable(list)
	return s
}

// source hands out what a test publishes.
type source struct {
	p     atomic.Pointer[load.Publication]
	clock func() load.Instant

	mu   sync.Mutex
	next chan struct{} // guarded by mu
}

func newSource(s *load.Snapshot) *source {
	src := &source{next: make(chan struct{})}
	src.p.Store(&load.Publication{Snapshot: s, Next: src.next})
	begun := time.Now()
	src.clock = func() load.Instant { return load.Instant(time.Since(begun).Microseconds()) + 1 }
	return src
}

func (s *source) Current() *load.Publication { return s.p.Load() }

func (s *source) Now() load.Instant { return s.clock() }

func (s *source) publish(snap *load.Snapshot) { s.replace(snap, 0) }

func (s *source) beat() { s.replace(nil, 1) }

func (s *source) replace(snap *load.Snapshot, beats uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.p.Load()
	if snap == nil {
		snap = old.Snapshot
	}
	superseded := s.next
	s.next = make(chan struct{})
	s.p.Store(&load.Publication{Snapshot: snap, Beat: old.Beat + beats, Next: s.next})
	close(superseded)
}

// beats beats every interval until stop is called.
func (s *source) beats(interval time.Duration) (stop func()) {
	quit := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(interval)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				s.beat()
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}
