package client

import (
	"testing"
	"time"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// step is one view that ageing brings forth: at which time, and the freshness of the worker and of its ranks then.
type step struct {
	ms     int
	worker load.Freshness
	ranks  []load.Freshness
}

func TestAgeing_EachRankEndsWithItsWindow(t *testing.T) { // WATCH 7
	const f, s, m = load.Fresh, load.Stale, load.Missing
	ranked := func(ranks ...*loadmonitorpb.Rank) *loadmonitorpb.Worker {
		return with(aWorker(1, 1, 1000), func(w *loadmonitorpb.Worker) {
			w.SetRanks(ranks)
			w.SetFreshnessWindowMs(30)
		})
	}
	told := func(r *loadmonitorpb.Rank, f loadmonitorpb.Freshness) *loadmonitorpb.Rank {
		return with(r, func(r *loadmonitorpb.Rank) { r.SetFreshness(f) })
	}
	for _, tc := range []struct {
		name   string
		worker *loadmonitorpb.Worker
		mark   uint64
		steps  []step
	}{
		{"ranks of different age", ranked(aRank(0, 1, 20_000), aRank(1, 1, 10_000)), 0,
			[]step{{40, s, []load.Freshness{f, s}}, {50, s, []load.Freshness{s, s}}}},
		{"a mark counts for fresh ranks", ranked(aRank(0, 1, 20_000), told(aRank(1, 1, 10_000), stale)), 25_000,
			[]step{{55, s, []load.Freshness{s, s}}}},
		{"missing ranks stay missing", with(ranked(aRank(0, 1, 20_000), told(aRank(1, 1, 0), loadmonitorpb.Freshness_FRESHNESS_MISSING)),
			func(w *loadmonitorpb.Worker) { w.SetFreshness(loadmonitorpb.Freshness_FRESHNESS_INCOMPLETE) }), 0,
			[]step{{50, load.Incomplete, []load.Freshness{s, m}}}},
		{"what was not fresh stays as it was", with(ranked(told(aRank(0, 1, 20_000), stale)),
			func(w *loadmonitorpb.Worker) { w.SetFreshness(loadmonitorpb.Freshness_FRESHNESS_UNREACHABLE) }), 0, nil},
		{"a worker whose ranks were not asked for", with(ranked(), func(w *loadmonitorpb.Worker) { w.SetOldestReceivedUs(15_000) }), 18_000,
			[]step{{48, s, nil}}},
		{"a report of unknown age is over at once", ranked(aRank(0, 1, 0)), 0, []step{{0, s, []load.Freshness{s}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := frame{Epoch: "e", View: "v", Version: 5, Last: true, Changed: workers{tc.worker}, Summary: summaryFor(tc.worker)}
			if tc.mark != 0 {
				r.Refreshed, r.RefreshedUs = []uint32{1}, []uint64{tc.mark}
			}
			p := feed(t, &frames{}, r.Build()).picture
			before, _ := viewOf(p).ByHandle(1)

			base := time.Now()
			a := newAgeing(p, &clock{zero: base, floor: base}, "silent")
			for i, want := range tc.steps {
				at, ok := a.next()
				if want.ms == 0 {
					at, ok = base, ok && at.IsZero()
				}
				if !ok || !at.Equal(base.Add(time.Duration(want.ms)*time.Millisecond)) {
					t.Fatalf("step %d is due %v after base, %t: want %d ms", i, at.Sub(base), ok, want.ms)
				}
				if want.ms > 0 && a.advance(at.Add(-1)) {
					t.Fatalf("step %d comes early", i)
				}
				if !a.advance(at) {
					t.Fatalf("step %d does nothing", i)
				}
				c := a.table.at(0)
				w := Worker{Status: c.status, refreshed: c.refreshed}
				if w.Freshness != want.worker {
					t.Errorf("step %d: worker is %v, want %v", i, w.Freshness, want.worker)
				}
				for r, wantRank := range want.ranks {
					if got := w.Ranks[r].Freshness; got != wantRank {
						t.Errorf("step %d: rank %d is %v, want %v", i, r, got, wantRank)
					}
					if got, was := w.received(r), before.received(r); got != was {
						t.Errorf("step %d: rank %d was received at %d, and %d before ageing", i, r, got, was)
					}
				}
				if was := before.Freshness == load.Fresh; (w.Reason == "silent") != was {
					t.Errorf("step %d: reason %q", i, w.Reason)
				}
				var tally load.Summary
				tally.Add(w.Freshness, 1)
				if a.summary != tally {
					t.Errorf("step %d: summary %+v, want %+v", i, a.summary, tally)
				}
			}
			if at, ok := a.next(); ok {
				t.Errorf("one more is due %v after base", at.Sub(base))
			}
			if a.advance(base.Add(time.Hour)) {
				t.Error("more has aged than was due")
			}
			if c := p.table.at(0); c.status != before.Status {
				t.Error("the picture itself has changed")
			}
		})
	}
}

func TestAgeing_AllEndsEverythingNow(t *testing.T) {
	p := feed(t, &frames{}, three()).picture
	a := newAgeing(p, nil, "stopped")
	if !a.all() || a.summary != (load.Summary{Workers: 3, Stale: 3}) {
		t.Fatalf("summary %+v", a.summary)
	}
	if a.all() {
		t.Error("there was more to end")
	}
}
