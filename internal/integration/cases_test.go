package integration

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/loadmonitor/loadmonitor/client"
	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

func running(t *testing.T, w client.Worker, i int) int64 {
	t.Helper()
	if i >= len(w.Ranks) {
		t.Fatalf("%d ranks, want more than %d", len(w.Ranks), i)
	}
	n, ok := w.Ranks[i].Load.Int(load.NumRunningReqs)
	if !ok {
		t.Fatalf("rank %d: running is not told", i)
	}
	return n
}

func TestA1_ReplacedEngineLeavesNothing(t *testing.T) {
	inBubble(t, []load.Worker{decoder()}, func(t *testing.T, m *whole) {
		router := m.watch(client.Options{})
		late := m.engine() // the second connection that srcA had opened before
		a := m.engine()
		a.push(sane("srcA", 500, ranks(4, 40)...))
		if w := shown(t, router, "w1"); w.SourceInstance != "srcA" || len(w.Ranks) != 4 {
			t.Fatalf("before: source %q, %d ranks", w.SourceInstance, len(w.Ranks))
		}
		a.close()
		b := m.engine()
		b.push(sane("srcB", 1, rank(0, 0)))

		check := func(when string) {
			t.Helper()
			w := shown(t, router, "w1")
			if w.SourceInstance != "srcB" || w.Sequence != 1 || len(w.Ranks) != 1 || running(t, w, 0) != 0 || w.Freshness != load.Fresh {
				t.Errorf("%s: source %q, sequence %d, %s, ranks %+v", when, w.SourceInstance, w.Sequence, w.Freshness, w.Ranks)
			}
		}
		check("after srcB came")
		late.push(sane("srcA", 501, ranks(4, 40)...))
		if st := late.end(); st.Code() != codes.InvalidArgument || st.Message() == "" {
			t.Errorf("the late report ended its stream with %v, want INVALID_ARGUMENT and a reason", st)
		}
		check("after the late report of srcA")
	})
}

func TestB4_TwoLiveSourcesSwitchOnce(t *testing.T) {
	inBubble(t, []load.Worker{decoder()}, func(t *testing.T, m *whole) {
		router := m.watch(client.Options{})
		var seen []int64 // running, whenever it changed
		var mu sync.Mutex
		stop := make(chan struct{})
		var looking sync.WaitGroup
		looking.Go(func() {
			for {
				v := router.View()
				if w, ok := v.Worker("w1"); ok && len(w.Ranks) > 0 {
					n, _ := w.Ranks[0].Load.Int(load.NumRunningReqs)
					mu.Lock()
					if len(seen) == 0 || seen[len(seen)-1] != n {
						seen = append(seen, n)
					}
					mu.Unlock()
				}
				select {
				case <-v.Changed():
				case <-stop:
					return
				}
			}
		})
		a, b := m.engine(), m.engine()
		for i := range uint64(300) {
			// Whoever is turned away comes back over a new stream at once, which is more than engines do.
			if !a.push(sane("srcA", 100+i, rank(0, 1))) {
				a = m.engine()
			}
			time.Sleep(50 * time.Millisecond)
			if !b.push(sane("srcB", 5+i, rank(0, 90))) {
				b = m.engine()
			}
			time.Sleep(50 * time.Millisecond)
		}
		w := shown(t, router, "w1")
		close(stop)
		looking.Wait()
		if !slices.Equal(seen, []int64{1, 90}) {
			t.Errorf("the router saw running %v, want one switch from 1 to 90", seen)
		}
		if !slices.Contains(w.Anomalies, "source_conflict") || w.Restarts != 1 || w.Freshness != load.Fresh {
			t.Errorf("%s, anomalies %v, %d restarts, want fresh with source_conflict and 1", w.Freshness, w.Anomalies, w.Restarts)
		}
	})
}

func TestC1_SilenceIsAnEvent(t *testing.T) {
	inBubble(t, []load.Worker{decoder()}, func(t *testing.T, m *whole) {
		router := m.watch(client.Options{})
		m.engine().push(sane("srcA", 1, rank(0, 0)))
		reported := time.Now()
		w := shown(t, router, "w1")
		if w.Freshness != load.Fresh {
			t.Fatalf("%s: %s", w.Freshness, w.Reason)
		}
		v := router.View()
		for w.Freshness == load.Fresh {
			<-v.Changed()
			v = router.View()
			w, _ = v.Worker("w1")
		}
		if after := time.Since(reported); after < 3*time.Second || after > 3*time.Second+slack || w.Freshness != load.Stale || w.Reason == "" {
			t.Errorf("after %v: %s (%q), want stale with a reason after 3s", after, w.Freshness, w.Reason)
		}
		time.Sleep(7*time.Second - time.Since(reported))
		w = shown(t, router, "w1")
		if age, ok := w.Age(time.Now()); !ok || age < 7*time.Second || age > 7*time.Second+2*slack {
			t.Errorf("age %v, %t, want 7s", age, ok)
		}
		if w := m.worker("w1"); w.GetRanks()[0].GetReceivedUs() == 0 || w.GetOldestReceivedUs() != 0 || w.GetRanks()[0].GetNumRunningReqs() != 0 {
			t.Errorf("snapshot %v: want the receipt of the last report, no fresh rank, and the last values", w)
		}
	})
}

func TestC5_NoDataIsNotZero(t *testing.T) {
	w1 := decoder()
	w1.ExpectedRanks = 4
	inBubble(t, []load.Worker{w1}, func(t *testing.T, m *whole) {
		router := m.watch(client.Options{})
		if w := shown(t, router, "w1"); w.Freshness != load.Missing || len(w.Ranks) != 0 || w.Aggregate != (load.Aggregate{}) {
			t.Errorf("before any report: %s, ranks %+v, aggregate %+v", w.Freshness, w.Ranks, w.Aggregate)
		}
		m.engine().push(sane("srcA", 1, rank(2, 7)))
		w := shown(t, router, "w1")
		if w.Freshness != load.Incomplete || len(w.Ranks) != 4 || w.Aggregate != (load.Aggregate{RankCount: 1}) {
			t.Fatalf("after rank 2: %s, %d ranks, aggregate %+v", w.Freshness, len(w.Ranks), w.Aggregate)
		}
		for i := range w.Ranks {
			r := &w.Ranks[i]
			want, wantLoad := load.Missing, load.RankLoad{DPRank: int32(i)}
			if i == 2 {
				want, wantLoad = load.Fresh, r.Load
			}
			if r.Freshness != want || r.Load != wantLoad {
				t.Errorf("rank %d: %s, %+v", i, r.Freshness, r.Load)
			}
		}
		if n := running(t, w, 2); n != 7 {
			t.Errorf("rank 2 runs %d, want 7", n)
		}
	})
}

func TestC7_OneHealthyReportHeals(t *testing.T) {
	inBubble(t, []load.Worker{decoder()}, func(t *testing.T, m *whole) {
		router := m.watch(client.Options{})
		engine := m.engine()
		var seen []load.Freshness
		for i, r := range []*modelgatewaypb.LoadReport{
			sane("srcA", 1, rank(0, 5)),
			{Status: modelgatewaypb.ReportStatus_REPORT_STATUS_UNREACHABLE, LastError: new("x")},
			sane("srcA", 3, rank(0, 5)),
		} {
			if i == 1 {
				like := sane("srcA", 2)
				r.SourceInstanceId, r.SequenceId, r.ReportTimeUnixMs, r.Worker = "srcA", 2, like.ReportTimeUnixMs, like.Worker
			}
			engine.push(r)
			w := shown(t, router, "w1")
			seen = append(seen, w.Freshness)
			if wantError := r.GetLastError(); w.LastError != wantError || running(t, w, 0) != 5 {
				t.Errorf("report %d: last error %q, want %q; ranks %+v", i+1, w.LastError, wantError, w.Ranks)
			}
		}
		if want := []load.Freshness{load.Fresh, load.Unreachable, load.Fresh}; !slices.Equal(seen, want) {
			t.Errorf("the router saw %v, want %v", seen, want)
		}
	})
}

func TestE4_RanksVanishTogether(t *testing.T) {
	sockets := decoder()
	sockets.ID, sockets.URL, sockets.Origin = "w2", "http://10.9.0.6:30000", "10.9.0.6:30000"
	sockets.Transport, sockets.ExpectedRanks = load.TransportZMQ, 8
	inBubble(t, []load.Worker{decoder(), sockets}, func(t *testing.T, m *whole) {
		router := m.watch(client.Options{})
		engine := m.engine()
		engine.push(sane("srcA", 1, ranks(8, 1)...))
		streams := make([]*load.Stream, 8)
		of := func(i int, seq int64) *load.RankReport {
			return &load.RankReport{WorkerID: "w2", Sequence: seq, Load: load.RankLoad{DPRank: int32(i)}, CapacityOptional: true}
		}
		for i := range streams {
			streams[i] = load.NewStream(load.TransportZMQ)
			if err := m.ApplyRank(streams[i], of(i, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if w1, w2 := shown(t, router, "w1"), shown(t, router, "w2"); len(w1.Ranks) != 8 || len(w2.Ranks) != 8 || w2.Freshness != load.Fresh {
			t.Fatalf("before: %d and %d ranks, %s", len(w1.Ranks), len(w2.Ranks), w2.Freshness)
		}

		var counts [2][]int // of ranks, in each view from now on
		v := router.View()
		engine.push(sane("srcA", 2, ranks(2, 1)...))
		sockets.ExpectedRanks = 2
		m.SetWorkers([]load.Worker{decoder(), sockets})
		for range 3 {
			late := m.ApplyRank(streams[5], of(5, 2))
			if !errors.Is(late, load.ErrRankRange) {
				t.Errorf("a late message of rank 5: %v, want ErrRankRange", late)
			}
			<-v.Changed()
			v = router.View()
			for i, id := range []string{"w1", "w2"} {
				w, _ := v.Worker(id)
				counts[i] = append(counts[i], len(w.Ranks))
			}
			time.Sleep(time.Second)
			engine.push(sane("srcA", 2+uint64(len(counts[0])), ranks(2, int64(len(counts[0])))...))
		}
		if n := refused(m, load.ErrRankRange); n != 3 {
			t.Errorf("%v late messages are counted, want 3", n)
		}
		for i, c := range counts {
			if c = slices.Compact(c); !slices.Equal(c, []int{2}) && !slices.Equal(c, []int{8, 2}) {
				t.Errorf("worker w%d had %v ranks one after the other, want 2 at once", i+1, c)
			}
		}
	})
}

// refused returns how many reports the monitor counts as refused for a reason.
func refused(m *whole, reason *load.Refusal) (n float64) {
	for _, family := range m.Metrics() {
		if family.Name == "reports_refused_total" {
			family.Collect(func(v float64, labels ...load.Label) {
				if labels[0].Value == reason.Label {
					n = v
				}
			})
		}
	}
	return n
}

func TestI8_WatchFromAnyMomentSeesTheFinalState(t *testing.T) {
	const rounds = 300
	// Not in whole milliseconds: a timer that has expired when somebody first waits for it crashes the race detector when
	// another one fires at the same moment of the bubble (go.dev/issue/78156).
	upTo := func(d time.Duration) time.Duration { return rand.N(d) + time.Nanosecond }
	inBubble(t, nil, func(t *testing.T, m *whole) {
		for range rounds {
			opened := make(chan *client.Client, 1)
			go func() {
				time.Sleep(upTo(40 * time.Millisecond))
				opened <- m.watch(client.Options{})
			}()
			pause := func() { time.Sleep(upTo(10 * time.Millisecond)) }
			pause()
			m.SetWorkers([]load.Worker{decoder()})
			pause()
			engine := m.engine()
			engine.push(sane("srcA", 1, rank(0, 1)))
			pause()
			m.SetWorkers(nil)
			pause()
			last := decoder()
			last.Zone = "z2"
			m.SetWorkers([]load.Worker{last})
			final := m.Current().Snapshot.Version

			router := <-opened
			settle()
			v := router.View()
			w, ok := v.Worker("w1")
			if v.Epoch == "" || v.State != load.FleetReady || v.Len() != 1 || !ok || w.Zone != "z2" || w.Freshness != load.Missing {
				t.Fatalf("version %d of at least %d: state %s, %d workers, %+v", v.Version, final, v.State, v.Len(), w.Status)
			}
			m.SetWorkers(nil)
			settle()
			if v := router.View(); v.State != load.FleetNoWorkers || v.Len() != 0 {
				t.Fatalf("after all workers were removed: state %s, %d workers", v.State, v.Len())
			}
			router.Close()
			engine.close()
		}
	})
}
