package watch

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// A count that follows from that of an earlier version is the same as one that looks at every worker, whatever happened in
// between: workers change, refresh, come, leave, and are described anew, so that they move from one view to another.
func TestSummary_FromAnEarlierOneIsExact(t *testing.T) {
	t.Parallel()
	views := []*view{
		mustView(t, filtered(loadmonitorpb.Filter_builder{Zones: []string{"z1"}})),
		mustView(t, filtered(loadmonitorpb.Filter_builder{Zones: []string{"z0", "z2"}, Models: []string{"m1"}})),
		mustView(t, filtered(loadmonitorpb.Filter_builder{Roles: []loadmonitorpb.Role{loadmonitorpb.Role_ROLE_DECODE}})),
		mustView(t, filtered(loadmonitorpb.Filter_builder{Ids: []string{"w0007", "w0100", "w1100"}})),
		mustView(t, withRanks),
	}
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 0))
		f := newFleet()
		for i := range 1200 {
			f.report(fmt.Sprintf("w%04d", i), 1)
		}
		snap := f.publish()
		svc := newService(t, Options{Source: newSource(snap)})
		held := []*load.Snapshot{snap}
		for range 60 {
			moved := false
			for range rng.IntN(5) {
				id := fmt.Sprintf("w%04d", rng.IntN(1300))
				known := f.entries[id] != nil
				switch n := rng.IntN(8); {
				case !known:
					f.report(id, 1)
					moved = true
				case n == 0:
					f.remove(id)
					moved = true
				case n == 1:
					f.expire(id)
				case n == 2:
					f.refresh(id)
				case n < 5:
					f.put(id, func(ws *load.WorkerStatus) {
						ws.Worker.Zone, ws.Worker.Models = fmt.Sprint("z", rng.IntN(3)), []string{fmt.Sprint("m", rng.IntN(2))}
						ws.Worker.Role = load.RoleRegular + load.Role(rng.IntN(3))
					})
				default:
					f.report(id, int64(n))
				}
			}
			last := snap
			if snap = f.publish(); !moved {
				snap.Workers = edited(last, snap)
			}
			held = append(held, snap)
			base := held[rng.IntN(len(held))].Version
			for i, v := range views {
				if i == rng.IntN(len(views)) {
					continue // this version is not counted for the view
				}
				want := v.summary(snap)
				if got := svc.summary(snap, base, v); got != want {
					t.Fatalf("seed %d, view %d, from %d to %d: %+v, want %+v", seed, i, base, snap.Version, got, want)
				}
				if got := svc.summary(snap, 0, v); got != want {
					t.Fatalf("seed %d, view %d, version %d asked again: %+v, want %+v", seed, i, snap.Version, got, want)
				}
			}
			if keep := len(held) - 20; keep > 0 {
				held = held[keep:]
			}
		}
	}
}

// edited returns the table of a snapshot made from that of another with the same workers, as the aggregator makes it.
func edited(from, to *load.Snapshot) load.Table {
	edit := from.Workers.Edit(to.Version)
	for i := range to.Workers.Len() {
		if e := to.Workers.At(i); e != from.Workers.At(i) {
			edit.Set(i, e)
		}
	}
	return edit.Table()
}

// Rule LIFE2: what makes the next count cheap keeps no old snapshot alive.
func TestSummary_KeepsNoSnapshotAlive(t *testing.T) {
	t.Parallel()
	f := bigFleet(50)
	snap := f.publish()
	svc := newService(t, Options{Source: newSource(snap)})
	v := mustView(t, filtered(loadmonitorpb.Filter_builder{Zones: []string{"z3"}}))
	gone := make(chan struct{})
	old := f.publish()
	runtime.AddCleanup(old, func(c chan struct{}) { close(c) }, gone)
	version := old.Version
	svc.summary(old, 0, v)
	if svc.versions.get(version) != old {
		t.Error("a snapshot that is held is not found")
	}
	runtime.KeepAlive(old)
	snap = f.publish()
	svc.summary(snap, version, v)
	runtime.GC()
	<-gone
	if svc.versions.get(version) != nil || svc.versions.get(snap.Version) != snap {
		t.Error("a snapshot is found that nobody holds, or one is not found that is held")
	}
}

// BenchmarkSummary counts a zone of a large fleet in which one worker changed.
func BenchmarkSummary(b *testing.B) {
	f := bigFleet(10_000)
	last := f.publish()
	svc := newService(b, Options{Source: newSource(last)})
	v := mustView(b, filtered(loadmonitorpb.Filter_builder{Zones: []string{"z3"}}))
	svc.summary(last, 0, v)
	snaps := make([]*load.Snapshot, 200)
	for i := range snaps {
		f.report("10.9.7.7:30000", int64(i))
		snaps[i] = f.publish()
		snaps[i].Workers = edited(last, snaps[i])
		last = snaps[i]
	}
	b.Run("from the one before", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i = (i + 1) % (len(snaps) - 1) {
			memoOf(snaps[i+1]).counts = nil
			svc.summary(snaps[i+1], snaps[i].Version, v)
		}
	})
	b.Run("full", func(b *testing.B) {
		for i := 0; b.Loop(); i = (i + 1) % len(snaps) {
			v.summary(snaps[i])
		}
	})
}
