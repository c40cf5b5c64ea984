package aggregator

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

func TestSEQ1_OldIsIgnoredAndHolesMeanNothing(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		st := push()
		for _, step := range []struct {
			seq  uint64
			want error
		}{
			{1<<64 - 1, load.ErrSequenceRange}, {1, nil}, {0, load.ErrSequenceRange}, {1, load.ErrSequenceOld},
			{2, nil}, {500, nil}, {499, load.ErrSequenceOld}, {501 + 1<<32, load.ErrSequenceJump}, {501, nil},
		} {
			refused(t, f.Apply(st, report(5, "srcA", step.seq, rank(0, running(int64(step.seq%1000))))), step.want)
		}
		e := f.want("w5", load.Fresh)
		if v := intOf(t, e, 0, load.NumRunningReqs); v != 501 || e.Sequence != 501 {
			t.Errorf("running %d of sequence %d, want 501", v, e.Sequence)
		}
	})
}

// Case C2: the engine's wall clock decides nothing.
func TestFR1_EngineClocksDoNotMatter(t *testing.T) {
	for name, skew := range map[string]time.Duration{"ahead": 10 * time.Minute, "behind": -10 * time.Minute, "200 ms ahead": 200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{}, func(t *testing.T, f *fleet) {
				f.SetWorkers([]load.Worker{w(5)})
				st := push()
				for seq := range uint64(5) {
					r := report(5, "srcA", seq+1, rank(0, func(r *load.RankLoad) { r.SnapshotTimeUnixMs = time.Now().Add(skew).UnixMilli() }))
					r.ReportTimeUnixMs = time.Now().Add(skew).UnixMilli()
					f.apply(st, r)
					f.want("w5", load.Fresh)
					time.Sleep(time.Second)
				}
				time.Sleep(2 * time.Second)
				f.want("w5", load.Stale)
			})
		})
	}
}

func TestFR1_AnOldSampleIsStaleAlthoughItsDeliveryIsNew(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		st := push()
		now := time.Now().UnixMilli()
		sampled := func(ms int64) func(*load.RankLoad) {
			return func(r *load.RankLoad) { r.SnapshotTimeUnixMs = ms }
		}
		r := report(5, "srcA", 1, rank(0, sampled(now)), rank(1, sampled(now-3001)))
		r.ReportTimeUnixMs = now
		f.apply(st, r)
		e := f.want("w5", load.Stale)
		if e.Ranks[0].Freshness != load.Fresh || e.Ranks[1].Freshness != load.Stale || e.Ranks[1].SampleAgeMs != 3001 {
			t.Errorf("ranks %s and %s with a sample age of %d ms", e.Ranks[0].Freshness, e.Ranks[1].Freshness, e.Ranks[1].SampleAgeMs)
		}
		r = report(5, "srcA", 2, rank(0), rank(1))
		r.Status = load.StatusStale
		f.apply(st, r)
		e = f.want("w5", load.Stale)
		if e.Ranks[0].Freshness != load.Stale || e.Ranks[1].Freshness != load.Stale {
			t.Error("a report that the engine calls stale leaves a rank fresh")
		}
		f.apply(st, report(5, "srcA", 3, rank(0), rank(1)))
		f.want("w5", load.Fresh)
	})
}

// Case C7: one healthy report clears unreachable, values equal or not.
func TestFR2_UnreachableKeepsTheLastRanksStaleAndClears(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		st := push()
		f.apply(st, report(5, "srcA", 1, rank(0, running(5))))
		f.want("w5", load.Fresh)
		r := report(5, "srcA", 2)
		r.Status, r.LastError = load.StatusUnreachable, "x"
		f.apply(st, r)
		e := f.want("w5", load.Unreachable)
		if len(e.Ranks) != 1 || e.Ranks[0].Freshness != load.Stale || intOf(t, e, 0, load.NumRunningReqs) != 5 || e.LastError != "x" {
			t.Errorf("unreachable shows %+v with error %q, want the last rank, stale, and the error", e.Ranks, e.LastError)
		}
		f.apply(st, report(5, "srcA", 3, rank(0, running(5))))
		if e := f.want("w5", load.Fresh); e.LastError != "" || e.Ranks[0].Freshness != load.Fresh {
			t.Errorf("after a healthy report: last error %q, rank %s", e.LastError, e.Ranks[0].Freshness)
		}
	})
}

func TestFR2_UnreachableFromTheStart(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		r := report(5, "srcA", 1)
		r.Status, r.LastError = load.StatusUnreachable, "no sample yet"
		f.apply(push(), r)
		if e := f.want("w5", load.Unreachable); !strings.Contains(e.Reason, "no sample yet") || len(e.Ranks) != 0 {
			t.Errorf("reason %q with %d ranks", e.Reason, len(e.Ranks))
		}
	})
}

// Cases C5 and E2: what is missing carries no number, and the worker no sum.
func TestFR3_MissingRanksAreNotZero(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5, func(worker *load.Worker) { worker.ExpectedRanks = 4 })})
		if e := f.want("w5", load.Missing); len(e.Ranks) != 0 || e.Aggregate != (load.Aggregate{}) {
			t.Errorf("nothing reported, but %d ranks and %+v", len(e.Ranks), e.Aggregate)
		}
		st := push()
		f.apply(st, report(5, "srcA", 1, rank(2)))
		e := f.want("w5", load.Incomplete)
		var got []load.Freshness
		for i := range e.Ranks {
			got = append(got, e.Ranks[i].Freshness)
			if _, ok := e.Ranks[i].Load.Int(load.NumRunningReqs); ok != (i == 2) {
				t.Errorf("rank %d has a load: %v", i, ok)
			}
		}
		if want := []load.Freshness{load.Missing, load.Missing, load.Fresh, load.Missing}; !slices.Equal(got, want) {
			t.Errorf("ranks are %v, want %v", got, want)
		}
		if _, ok := e.Aggregate.Int(load.SumRunningReqs); ok || e.Aggregate.RankCount != 1 {
			t.Errorf("aggregate of an incomplete worker: %+v", e.Aggregate)
		}
		f.apply(st, report(5, "srcA", 2, rank(0), rank(1), rank(2), rank(3)))
		f.want("w5", load.Fresh)
	})
}

// Case E3: rank numbers are keys.
func TestFR3_RankNumbersAreTakenAsGiven(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5, func(worker *load.Worker) { worker.ExpectedRanks = 4 }), w(6)})
		f.apply(push(), report(5, "srcA", 1, rank(7), rank(4), rank(6), rank(5)))
		f.apply(push(), report(6, "srcB", 1, rank(0), rank(2), rank(5)))
		for id, want := range map[string][]int32{"w5": {4, 5, 6, 7}, "w6": {0, 2, 5}} {
			var got []int32
			for _, r := range f.want(id, load.Fresh).Ranks {
				got = append(got, r.Load.DPRank)
			}
			if !slices.Equal(got, want) {
				t.Errorf("worker %s has ranks %v, want %v", id, got, want)
			}
		}
	})
}

// Case E4: ranks vanish together.
func TestFR3_AReportReplacesTheWholeRankSet(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		st := push()
		f.apply(st, report(5, "srcA", 1, rank(0), rank(1), rank(2), rank(3), rank(4), rank(5), rank(6), rank(7)))
		if n := len(f.want("w5", load.Fresh).Ranks); n != 8 {
			t.Fatalf("%d ranks, want 8", n)
		}
		f.apply(st, report(5, "srcA", 2, rank(0), rank(1)))
		if n := len(f.want("w5", load.Fresh).Ranks); n != 2 {
			t.Errorf("%d ranks, want 2", n)
		}
	})
}

// Case C1: silence is noticed at the deadline, without any message.
func TestFR4_GoingStaleIsAnEvent(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		f.apply(push(), report(5, "srcA", 1, rank(0, running(0))))
		synctest.Wait()
		received := f.Now()
		f.want("w5", load.Fresh)
		var stale load.Instant
		for stale == 0 {
			<-f.Current().Next
			if e, _ := f.Current().Snapshot.Workers.Find("w5"); e.Freshness == load.Stale {
				stale = f.Current().Snapshot.Captured
			}
		}
		if after := time.Duration(stale-received) * time.Microsecond; after < 3*time.Second || after > 3*time.Second+2*DefaultPublishInterval {
			t.Errorf("stale %v after the report, want 3s", after)
		}
		e := f.want("w5", load.Stale)
		if e.Ranks[0].Received == 0 || intOf(t, e, 0, load.NumRunningReqs) != 0 {
			t.Error("the stale rank lost its last values or its receipt")
		}
	})
}

// Case C3: all stale at once keeps all, with last values; recovery is one report.
func TestFR4_AllStaleAtOnceKeepsAll(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		var workers []load.Worker
		var streams []*load.Stream
		for i := range 20 {
			workers = append(workers, w(i+1))
			streams = append(streams, push())
		}
		f.SetWorkers(workers)
		for i, st := range streams {
			f.apply(st, report(i+1, "src", 1, rank(0, running(int64(i)))))
		}
		f.settle()
		time.Sleep(6 * time.Second)
		s := f.settle()
		if s.Summary.Stale != 20 || s.Summary.Workers != 20 || s.Summary.Complete() {
			t.Errorf("summary %+v, want 20 stale", s.Summary)
		}
		for i := range 20 {
			if v := intOf(t, f.worker(workers[i].ID), 0, load.NumRunningReqs); v != int64(i) {
				t.Errorf("worker %d shows running %d, want its last value", i, v)
			}
		}
		for i, st := range streams {
			f.apply(st, report(i+1, "src", 2, rank(0, running(int64(i)))))
		}
		if s := f.settle(); !s.Summary.Complete() {
			t.Errorf("summary %+v after one report each, want all fresh", s.Summary)
		}
	})
}

// Case D5: an engine without capacity is starting, not idle.
func TestFR5_ZeroCapacityIsStillStarting(t *testing.T) {
	for name, edit := range map[string]func(*load.RankLoad){
		"no tokens": setInt(load.MaxTotalNumTokens, 0), "no requests": setInt(load.MaxRunningRequests, 0),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{}, func(t *testing.T, f *fleet) {
				f.SetWorkers([]load.Worker{w(5)})
				st := push()
				f.apply(st, report(5, "srcA", 1, rank(0, edit)))
				e := f.want("w5", load.Stale)
				if !strings.Contains(e.Reason, "starting") {
					t.Errorf("reason %q", e.Reason)
				}
				if _, ok := e.Aggregate.Float(load.WeightedTokenUsage); ok && name == "no tokens" {
					t.Error("usage of no capacity is known")
				}
				if _, ok := e.Aggregate.Float(load.RequestUtilization); ok && name == "no requests" {
					t.Error("utilisation of no slots is known")
				}
				f.apply(st, report(5, "srcA", 2, rank(0)))
				f.want("w5", load.Fresh)
			})
		})
	}
}

// Case C4: an idle engine that repeats itself stays fresh, and its content stays the same content.
func TestFR6_UnchangedValuesRefreshByMarks(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5), w(6)})
		st := push()
		f.apply(st, report(5, "srcA", 1, rank(0), rank(1)))
		first := f.want("w5", load.Fresh)
		other := f.worker("w6")
		for seq := range uint64(15) {
			time.Sleep(time.Second)
			before := f.Now()
			f.apply(st, report(5, "srcA", seq+2, rank(0), rank(1)))
			time.Sleep(DefaultRefreshInterval)
			e := f.want("w5", load.Fresh)
			if e.WorkerStatus != first.WorkerStatus {
				t.Fatal("an unchanged report changed the worker's content")
			}
			if e.Refreshed < before || e.RankReceived(1) != e.Refreshed || e.NewestSequence != seq+2 {
				t.Errorf("mark %d, receipt %d, sequence %d: want the newest report's", e.Refreshed, e.RankReceived(1), e.NewestSequence)
			}
			if age := f.Now() - e.OldestReceived(); age > 1_500_000 {
				t.Errorf("age is %d µs, want below 1.5 s", age)
			}
		}
		if f.worker("w6") != other {
			t.Error("marks of one worker touched another")
		}
	})
}

func TestFR6_MarksAreBatched(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		var workers []load.Worker
		var streams []*load.Stream
		for i := range 100 {
			workers = append(workers, w(i+1))
			streams = append(streams, push())
		}
		f.SetWorkers(workers)
		for i, st := range streams {
			f.apply(st, report(i+1, "src", 1, rank(0)))
		}
		time.Sleep(DefaultRefreshInterval)
		start := f.settle().Version
		for seq := range uint64(10) { // each worker repeats itself once a second, spread evenly
			for i, st := range streams {
				f.apply(st, report(i+1, "src", seq+2, rank(0)))
				time.Sleep(10 * time.Millisecond)
			}
		}
		if n := f.settle().Version - start; n > 105 || n < 90 {
			t.Errorf("%d versions in 10 s of unchanged reports, want about one each 100 ms", n)
		}
	})
}

// Case C7's kind: whatever makes a publication show a worker as stale, its next report makes it fresh, equal or not.
func TestFR4_AWorkerBuiltAtItsDeadlineIsFreshWithItsNextReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		a.SetWorkers(pointers([]load.Worker{w(5)}))
		st := push()
		if err := a.Apply(st, report(5, "srcA", 1, rank(0))); err != nil {
			t.Fatal(err)
		}
		freshness := func() load.Freshness {
			e, _ := a.Current().Snapshot.Workers.Find("w5")
			return e.Freshness
		}
		// The publisher was held up between its look at the deadlines and the building of a dirty worker.
		time.Sleep(DefaultWindow)
		a.publish(true)
		if f := freshness(); f != load.Stale {
			t.Fatalf("%s at the deadline, want stale", f)
		}
		if err := a.Apply(st, report(5, "srcA", 2, rank(0))); err != nil {
			t.Fatal(err)
		}
		a.publish(true)
		if f := freshness(); f != load.Fresh {
			t.Errorf("%s after a report with equal values, want fresh", f)
		}
	})
}

// Rule VAL5: a sample that grows old under equal values is shown before it is stale.
func TestVAL5_AnAgeingSampleIsAChange(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		st := push()
		sampled := time.Now().UnixMilli()
		for seq := range uint64(12) {
			r := report(5, "srcA", seq+1, rank(0, func(r *load.RankLoad) { r.SnapshotTimeUnixMs = sampled }))
			r.ReportTimeUnixMs = time.Now().UnixMilli()
			f.apply(st, r)
			time.Sleep(DefaultRefreshInterval)
			e := f.worker("w5")
			age := r.ReportTimeUnixMs - sampled
			if shown := int64(e.Ranks[0].SampleAgeMs); age-shown > DefaultWindow.Milliseconds()/4 {
				t.Errorf("sample age %d ms is shown as %d ms", age, shown)
			}
			time.Sleep(150 * time.Millisecond)
		}
	})
}

// A worker that reports and is not fresh shows that it reports.
func TestFR6_ReportsOfAWorkerWithoutAFreshRankShowTheirReceipt(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		st := push()
		starting := setInt(load.MaxTotalNumTokens, 0)
		for seq := range uint64(5) {
			before := f.Now()
			f.apply(st, report(5, "srcA", seq+1, rank(0, starting)))
			time.Sleep(DefaultRefreshInterval)
			if e := f.want("w5", load.Stale); e.Ranks[0].Received < before {
				t.Errorf("receipt %d, want the newest report's, from %d on", e.Ranks[0].Received, before)
			}
			time.Sleep(time.Second)
		}
	})
}
