package aggregator

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loadmonitor/loadmonitor/load"
)

// Cases D1 and E5: one bad value refuses the report, and the state before stays until it is stale.
func TestVAL2_ARefusedReportChangesNothingButTheReason(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		st := push()
		f.apply(st, report(5, "srcA", 1, rank(0, running(7))))
		f.settle()
		time.Sleep(time.Second)
		bad := []*load.Report{
			report(5, "srcA", 2, rank(0, running(-1))), report(5, "srcA", 2), report(5, "srcA", 2, rank(-1)),
			report(5, "srcA", 2, rank(1<<31-1)), report(5, "srcA", 2, rank(0), rank(0, running(2))),
		}
		for _, r := range bad {
			if err := f.Apply(st, r); err == nil || !strings.Contains(err.Error(), "worker w5") {
				t.Errorf("error %v does not name the worker", err)
			}
		}
		e := f.worker("w5")
		if e.Freshness != load.Fresh || intOf(t, e, 0, load.NumRunningReqs) != 7 || !strings.Contains(e.Reason, "refused") {
			t.Errorf("%s, running %d, reason %q", e.Freshness, intOf(t, e, 0, load.NumRunningReqs), e.Reason)
		}
		if st.Err() != nil {
			t.Errorf("the stream was ended: %v", st.Err())
		}
		time.Sleep(2 * time.Second)
		if e := f.worker("w5"); e.Freshness != load.Stale {
			t.Errorf("%s 3 s after the last good report, want stale", e.Freshness)
		}
		f.apply(st, report(5, "srcA", 2, rank(0)))
		if e := f.want("w5", load.Fresh); e.Reason != "" {
			t.Errorf("reason %q after a good report", e.Reason)
		}
	})
}

// Case D7: over capacity is published as told, with a sign.
func TestVAL2_OverCapacityIsASign(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		st := push()
		f.apply(st, report(5, "srcA", 1, rank(0, running(300))))
		e := f.want("w5", load.Fresh)
		if intOf(t, e, 0, load.NumRunningReqs) != 300 || intOf(t, e, 0, load.MaxRunningRequests) != 64 || e.Anomalies != load.OverCapacity {
			t.Errorf("anomalies %v, rank %+v", e.Anomalies.Names(), e.Ranks[0])
		}
		f.apply(st, report(5, "srcA", 2, rank(0, running(3))))
		if e := f.want("w5", load.Fresh); e.Anomalies != 0 {
			t.Errorf("anomalies %v stay", e.Anomalies.Names())
		}
	})
}

// Case D6: whatever goes backwards, nothing panics and own counters only rise.
func TestMetrics_OnlyRise(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5), w(6)})
		read := func() map[string]float64 {
			values := map[string]float64{}
			for _, m := range f.Metrics() {
				m.Collect(func(v float64, labels ...load.Label) {
					if m.Counter {
						values[fmt.Sprint(m.Name, labels)] = v
					}
				})
			}
			return values
		}
		before := read()
		check := func() {
			t.Helper()
			now := read()
			for name, v := range before {
				if now[name] < v {
					t.Errorf("%s went from %v to %v", name, v, now[name])
				}
			}
			before = now
		}
		st := push()
		eight := []load.RankLoad{rank(0), rank(1), rank(2), rank(3), rank(4), rank(5), rank(6), rank(7)}
		r := report(5, "srcA", 5000, eight...)
		r.ReportTimeUnixMs = 1e12
		f.apply(st, r)
		check()
		r = report(5, "srcB", 1, rank(0), rank(1))
		r.ReportTimeUnixMs = 1
		f.apply(push(), r)
		check()
		_ = f.Apply(st, report(5, "srcA", 0, rank(0)))
		check()
		time.Sleep(5 * time.Second)
		f.SetWorkers(nil)
		f.settle()
		check()
		if before["reports_accepted_total[]"] != 2 || before["source_restarts_total[]"] != 1 || before["workers_expired_total[]"] != 1 {
			t.Errorf("counters: %v", before)
		}
	})
}

// Case I4: nothing happens, nothing changes.
func TestSNAP1_AQuietFleetKeepsItsVersion(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5), w(6)})
		f.apply(push(), report(5, "srcA", 1, rank(0)))
		f.apply(push(), report(6, "srcB", 1, rank(0)))
		s := f.settle()
		beat := f.Current().Beat
		time.Sleep(2900 * time.Millisecond)
		synctest.Wait()
		if f.Current().Snapshot != s {
			t.Error("another snapshot although nothing happened")
		}
		if n := f.Current().Beat - beat; n < 2 || n > 3 {
			t.Errorf("%d heartbeats in 2.9 s, want one a second", n)
		}
	})
}

func TestSNAP1_AKeptSnapshotNeverChanges(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5), w(6)})
		st := push()
		f.apply(st, report(5, "srcA", 1, rank(0, running(1)), rank(1)))
		kept := f.settle()
		picture := func() string {
			var b strings.Builder
			for e := range kept.Workers.All() {
				fmt.Fprintf(&b, "%+v %v %q %+v %d %+v %q\n", e.Worker, e.Freshness, e.Reason, e.Aggregate, e.Sequence, e.Ranks, e.RankReasons)
			}
			return b.String()
		}
		before := picture()
		for seq := range uint64(20) {
			f.apply(st, report(5, "srcA", seq+2, rank(0, running(int64(seq))), rank(1)))
			f.settle()
		}
		time.Sleep(10 * time.Second)
		f.SetWorkers([]load.Worker{w(6), w(7)})
		f.settle()
		if diff := cmp.Diff(before, picture()); diff != "" {
			t.Errorf("a kept snapshot changed (-before +after):\n%s", diff)
		}
	})
}

func TestSNAP2_SortedByIDAndComplete(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(9), w(5), w(7)})
		for _, n := range []int{5, 7, 9} {
			if s := f.settle(); s.Summary.Complete() {
				t.Errorf("complete with %+v", s.Summary)
			}
			f.apply(push(), report(n, fmt.Sprint("src", n), 1, rank(0)))
		}
		s := f.settle()
		var ids []string
		for e := range s.Workers.All() {
			ids = append(ids, e.Worker.ID)
		}
		if strings.Join(ids, " ") != "w5 w7 w9" || !s.Summary.Complete() {
			t.Errorf("workers %v, summary %+v", ids, s.Summary)
		}
	})
}

func TestSNAP3_APublicationSharesWhatDidNotChange(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		workers := make([]load.Worker, 300)
		for i := range workers {
			workers[i] = w(1, func(x *load.Worker) {
				x.ID = fmt.Sprintf("w%03d", i)
				x.Origin = fmt.Sprintf("127.0.0.1:%d", 30000+i)
			})
		}
		f.SetWorkers(workers)
		before := f.settle()
		r := report(1, "srcA", 1, rank(0))
		r.Claim.Address = "127.0.0.1:30123"
		f.apply(push(), r)
		after := f.settle()
		if after.Version != before.Version+1 {
			t.Errorf("version %d after %d, want the next", after.Version, before.Version)
		}
		for i := range workers {
			if same := before.Workers.At(i) == after.Workers.At(i); same == (i == 123) {
				t.Errorf("entry %d shared: %v", i, same)
			}
		}
		n := 0
		for e := range after.Workers.Since(before.Version) {
			if n++; e.Worker.ID != "w123" {
				t.Errorf("worker %s changed", e.Worker.ID)
			}
		}
		if n != 1 {
			t.Errorf("%d workers changed, want 1", n)
		}
		if allocs := testing.AllocsPerRun(100, func() { _ = f.Current() }); allocs != 0 {
			t.Errorf("Current allocates %v times", allocs)
		}
	})
}

func TestSNAP4_PublicationIsPaced(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		st := push()
		f.apply(st, report(5, "srcA", 1, rank(0)))
		f.settle()
		time.Sleep(20 * time.Millisecond)

		start := f.Now()
		f.apply(st, report(5, "srcA", 2, rank(0, running(2))))
		synctest.Wait()
		if s := f.Current().Snapshot; s.Captured != start {
			t.Errorf("published %d µs after a report in a quiet fleet, want at once", s.Captured-start)
		}
		before := f.Current().Snapshot.Version
		for seq := range uint64(1000) {
			f.apply(st, report(5, "srcA", seq+3, rank(0, running(int64(seq)))))
			time.Sleep(100 * time.Microsecond)
		}
		s := f.settle()
		if n := s.Version - before; n < 15 || n > 22 {
			t.Errorf("%d versions in 100 ms under load, want at most one each 5 ms", n)
		}
		if v := intOf(t, f.worker("w5"), 0, load.NumRunningReqs); v != 999 {
			t.Errorf("running = %d, want the newest", v)
		}
	})
}

// Case I8: an empty list is never ambiguous.
func TestSNAP5_StateOfTheFleet(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		for _, c := range []struct {
			set  func()
			want load.FleetState
		}{
			{func() {}, load.FleetWarmingUp},
			{func() { f.SetWorkers(nil) }, load.FleetNoWorkers},
			{func() { f.SetWorkers([]load.Worker{w(5)}) }, load.FleetReady},
			{func() { f.SetWorkers(nil) }, load.FleetNoWorkers},
			{func() { f.SetWorkers([]load.Worker{w(6)}) }, load.FleetReady},
		} {
			c.set()
			if s := f.settle(); s.State != c.want || s.Version == 0 {
				t.Errorf("state %s in version %d, want %s", s.State, s.Version, c.want)
			}
		}
		s := f.settle()
		if len(s.Removals) != 1 || s.Removals[0].Handle != 1 {
			t.Errorf("removals %+v, want handle 1", s.Removals)
		}
	})
}

func TestRemovals_AreBounded(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		for i := range maxRemovals + 10 {
			f.SetWorkers([]load.Worker{w(1, func(x *load.Worker) { x.ID = fmt.Sprint("w", i) })})
			f.settle()
		}
		s := f.settle()
		if len(s.Removals) != maxRemovals || s.RemovalsFrom == 0 || s.RemovalsFrom >= s.Removals[0].Version {
			t.Errorf("%d removals from version %d, first at %d", len(s.Removals), s.RemovalsFrom, s.Removals[0].Version)
		}
	})
}

func TestNote_ShowsWhileNotFresh(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		f.SetNote("w5", "start_reporting: 403")
		f.SetNote("nobody", "ignored")
		if e := f.want("w5", load.Missing); e.Reason != "never reported; start_reporting: 403" {
			t.Errorf("reason %q", e.Reason)
		}
		f.apply(push(), report(5, "srcA", 1, rank(0)))
		f.want("w5", load.Fresh)
	})
}

func TestStreamLost_NamesTheWorkerThatLostItsFeed(t *testing.T) {
	var mu sync.Mutex
	var lost []string
	o := Options{StreamLost: func(id string) { mu.Lock(); lost = append(lost, id); mu.Unlock() }}
	inBubble(t, o, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		older, newer := push(), push()
		f.apply(older, report(5, "srcA", 1, rank(0)))
		f.apply(newer, report(5, "srcA", 2, rank(0)))
		f.Release(older)
		f.Release(push())
		f.Release(newer)
		f.Release(newer)
		if mu.Lock(); len(lost) != 1 || lost[0] != "w5" {
			t.Errorf("lost %v, want w5 once", lost)
		}
		mu.Unlock()
		f.want("w5", load.Fresh) // the end of a stream alone changes nothing
	})
}

// Case I6, the part of this room: no reader sees half of a report, and readers end on the last version.
func TestCurrent_NeverTorn(t *testing.T) {
	a, err := New(Options{PublishInterval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	go a.Run(t.Context())
	const workers, reports = 20, 300
	var all []load.Worker
	for i := range workers {
		all = append(all, w(i+1))
	}
	a.SetWorkers(pointers(all))
	var writers, readers sync.WaitGroup
	for i := range workers {
		writers.Go(func() {
			st := push()
			for seq := uint64(1); seq <= reports; seq++ {
				v := int64(seq)
				err := a.Apply(st, report(i+1, "src", seq, rank(0, running(v), setInt(load.NumWaitingReqs, v)), rank(1, running(v))))
				for errors.Is(err, load.ErrNotReady) {
					t.Errorf("Apply: %v", err)
				}
			}
		})
	}
	for range 4 {
		readers.Go(func() {
			var last uint64
			for {
				p := a.Current()
				if p.Snapshot.Version < last {
					t.Errorf("version %d after %d", p.Snapshot.Version, last)
				}
				last = p.Snapshot.Version
				done := 0
				for e := range p.Snapshot.Workers.All() {
					if len(e.Ranks) == 0 {
						continue
					}
					x, _ := e.Ranks[0].Load.Int(load.NumRunningReqs)
					y, _ := e.Ranks[0].Load.Int(load.NumWaitingReqs)
					z, _ := e.Ranks[1].Load.Int(load.NumRunningReqs)
					if x != y || x != z {
						t.Errorf("torn: %d %d %d", x, y, z)
					}
					if x == reports {
						done++
					}
				}
				if done == workers {
					return
				}
				<-p.Next
			}
		})
	}
	writers.Wait()
	readers.Wait()
}
