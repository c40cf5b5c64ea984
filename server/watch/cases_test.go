package watch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// Case C1: a worker that went silent becomes stale on every watcher without any report.
func TestCaseC1_GoingStaleReachesTheWatcherUnprompted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.report("w1", 0)
		src := newSource(f.publish())
		svc := newService(t, Options{Source: src})
		w := watch(t, serve(t, svc), withRanks)
		defer src.beats(time.Second)()
		time.Sleep(3 * time.Second)
		f.expire("w1") // what the aggregator publishes at the deadline
		src.publish(f.publish())
		synctest.Wait()
		w.see(func(r *receiver) {
			got := r.byID("w1")
			if got.GetFreshness() != loadmonitorpb.Freshness_FRESHNESS_STALE || r.summary.GetComplete() || r.summary.GetStale() != 1 {
				t.Errorf("the watcher holds %v with %v", got, r.summary)
			}
			if rank := got.GetRanks()[0]; rank.GetReceivedUs() != 1_000_000 || !rank.HasNumRunningReqs() {
				t.Errorf("age or last value is lost: %v", rank)
			}
		})
	})
}

// Case C3: when all go stale at once, all stay, with their last values and ages; recovery is one update.
func TestCaseC3_AllStaleAtOnceStayWithTheirValues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		for i := range 20 {
			f.report(fmt.Sprintf("w%02d", i), int64(i))
		}
		src := newSource(f.publish())
		w := watch(t, serve(t, newService(t, Options{Source: src})), withRanks)
		synctest.Wait()
		w.news()
		for i := range 20 {
			f.expire(fmt.Sprintf("w%02d", i))
		}
		src.publish(f.publish())
		synctest.Wait()
		wantShapes(t, w.news(), shape{1, 2, 20, 0, 0, true, true})
		w.see(func(r *receiver) {
			if s := r.summary; s.GetWorkers() != 20 || s.GetStale() != 20 || s.GetComplete() {
				t.Errorf("summary %v", s)
			}
			for i, got := range r.sorted() {
				if rank := got.GetRanks()[0]; rank.GetNumRunningReqs() != int64(i) || rank.HasTokenUsage() || rank.GetReceivedUs() == 0 {
					t.Errorf("%s: %v", got.GetId(), rank)
				}
			}
		})
		for i := range 20 {
			f.report(fmt.Sprintf("w%02d", i), int64(i))
		}
		src.publish(f.publish())
		synctest.Wait()
		wantShapes(t, w.news(), shape{2, 3, 20, 0, 0, true, true})
		w.see(func(r *receiver) {
			if !r.summary.GetComplete() {
				t.Errorf("summary %v", r.summary)
			}
		})
	})
}

// Case C7: a worker that was unreachable and says the same as before is as before, error gone.
func TestCaseC7_UnreachableIsClearedByTheSameValues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.report("w1", 5)
		src := newSource(f.publish())
		w := watch(t, serve(t, newService(t, Options{Source: src})), withRanks)
		synctest.Wait()
		for _, unreachable := range []bool{true, false} {
			f.report("w1", 5)
			f.put("w1", func(ws *load.WorkerStatus) {
				ws.LastError = ""
				if unreachable {
					ws.Freshness, ws.LastError, ws.Ranks[0].Freshness = load.Unreachable, "x", load.Stale
				}
			})
			src.publish(f.publish())
			synctest.Wait()
			w.see(func(r *receiver) {
				got := r.byID("w1")
				if (got.GetFreshness() == loadmonitorpb.Freshness_FRESHNESS_UNREACHABLE) != unreachable || (got.GetLastError() == "x") != unreachable {
					t.Errorf("unreachable %v: %v", unreachable, got)
				}
			})
		}
	})
}

// Case D4: the one rank that holds the whole queue can be read without guessing, and the worker's figure says its rule.
func TestCaseD4_ThePeakRankIsVisible(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.report("w1", 0, 0, 11, 0)
		f.put("w1", func(ws *load.WorkerStatus) {
			for i, used := range []int64{0, 0, 990, 0} {
				ws.Ranks[i].Load.SetInt(load.NumUsedTokens, used)
				ws.Ranks[i].Load.SetInt(load.MaxTotalNumTokens, 1000)
				ws.Ranks[i].Load.SetFloat(load.TokenUsage, float64(used)/1000)
			}
			ws.Aggregate.SetInt(load.MaxRankWaitingReqs, 11)
			ws.Aggregate.SetFloat(load.MaxRankTokenUsage, 0.99)
			ws.Aggregate.SetFloat(load.WeightedTokenUsage, 0.2475)
		})
		svc := newService(t, Options{Source: newSource(f.publish())})
		w := watch(t, serve(t, svc), withRanks)
		synctest.Wait()
		snap := readPages(t, svc, nil)[0].GetWorkers()[0]
		w.see(func(r *receiver) {
			got := r.byID("w1")
			if !proto.Equal(got, snap) {
				t.Errorf("watch and snapshot differ:\n%v\n%v", got, snap)
			}
			if len(got.GetRanks()) != 4 || got.GetRanks()[2].GetNumWaitingReqs() != 11 || got.GetRanks()[2].GetTokenUsage() != 0.99 {
				t.Errorf("ranks %v", got.GetRanks())
			}
			if a := got.GetAggregate(); a.GetMaxRankWaitingReqs() != 11 || a.GetMaxRankTokenUsage() != 0.99 || a.GetNumWaitingReqs() != 11 {
				t.Errorf("aggregate %v", a)
			}
		})
	})
}

// Case E3: ranks are keyed by the engine's numbers, which need not begin at 0 nor follow one another.
func TestCaseE3_RankNumbersAreTheEnginesOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		numbers := map[string][]int32{"w2": {4, 5, 6, 7}, "w3": {0, 2, 5}}
		for id, list := range numbers {
			f.report(id, make([]int64, len(list))...)
			f.put(id, func(ws *load.WorkerStatus) {
				for i, n := range list {
					ws.Ranks[i].Load.DPRank = n
				}
			})
		}
		svc := newService(t, Options{Source: newSource(f.publish())})
		w := watch(t, serve(t, svc), withRanks)
		synctest.Wait()
		snap := readPages(t, svc, nil)[0]
		for i, id := range []string{"w2", "w3"} {
			var watched *loadmonitorpb.Worker
			w.see(func(r *receiver) { watched = r.byID(id) })
			for _, got := range []*loadmonitorpb.Worker{watched, snap.GetWorkers()[i]} {
				var list []int32
				for _, r := range got.GetRanks() {
					list = append(list, r.GetDpRank())
				}
				if fmt.Sprint(list) != fmt.Sprint(numbers[id]) {
					t.Errorf("%s has ranks %v, want %v", id, list, numbers[id])
				}
			}
		}
	})
}
