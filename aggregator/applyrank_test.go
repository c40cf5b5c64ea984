package aggregator

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

func zmq(n, ranks int) load.Worker {
	return w(n, func(x *load.Worker) { x.Transport, x.ExpectedRanks = load.TransportZMQ, ranks })
}

func socket() *load.Stream { return load.NewStream(load.TransportZMQ) }

func message(n int, rankNo int32, seq int64, edit ...func(*load.RankLoad)) *load.RankReport {
	return &load.RankReport{WorkerID: fmt.Sprintf("w%d", n), Sequence: seq, Load: rank(rankNo, edit...)}
}

func (f *fleet) applyRank(st *load.Stream, r *load.RankReport) {
	f.t.Helper()
	if err := f.ApplyRank(st, r); err != nil {
		f.t.Fatalf("ApplyRank: %v", err)
	}
}

// Cases B1 and C5: each socket has its own sequence; what is missing shows why and carries no sum.
func TestApplyRank_EachSocketIsOneRank(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{zmq(5, 2)})
		e := f.want("w5", load.Missing)
		if len(e.Ranks) != 2 || e.Ranks[1].Freshness != load.Missing || e.Window != DefaultZMQWindow {
			t.Fatalf("ranks %+v, window %v", e.Ranks, e.Window)
		}
		f.SetRankNote("w5", 1, "connection refused")
		st0, st1 := socket(), socket()
		f.applyRank(st0, message(5, 0, 1000))
		e = f.want("w5", load.Incomplete)
		if _, ok := e.Aggregate.Int(load.SumRunningReqs); ok || e.Aggregate.RankCount != 1 || e.RankReason(1) != "never reported; connection refused" {
			t.Errorf("aggregate %+v, rank 1: %q", e.Aggregate, e.RankReason(1))
		}
		f.applyRank(st1, message(5, 1, 3, running(2)))
		f.applyRank(st1, message(5, 1, 4, running(7)))
		refused(t, f.ApplyRank(st1, message(5, 1, 4, running(9))), load.ErrSequenceOld)
		e = f.want("w5", load.Fresh)
		if v, _ := e.Aggregate.Int(load.SumRunningReqs); v != 8 {
			t.Errorf("running = %d, want 1 + 7", v)
		}
	})
}

// Case C5, one rank silent: the others stay, the worker is not fresh.
func TestApplyRank_ASilentRankGoesStaleAlone(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{zmq(5, 2)})
		st0, st1 := socket(), socket()
		f.applyRank(st1, message(5, 1, 0))
		for seq := range int64(12) {
			f.applyRank(st0, message(5, 0, seq))
			time.Sleep(time.Second)
		}
		e := f.want("w5", load.Stale)
		if e.Ranks[0].Freshness != load.Fresh || e.Ranks[1].Freshness != load.Stale {
			t.Errorf("ranks %s and %s", e.Ranks[0].Freshness, e.Ranks[1].Freshness)
		}
		if age := f.Now() - e.RankReceived(0); age > 1_200_000 {
			t.Errorf("rank 0 shows an age of %d µs although it repeats itself each second", age)
		}
		f.applyRank(st1, message(5, 1, 1))
		f.want("w5", load.Fresh)
	})
}

// A restart of the engine restarts each of its publishers; it counts once.
func TestApplyRank_AnEngineRestartCountsOnce(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{zmq(5, 2)})
		for life := range int64(2) {
			for r := range int32(2) {
				st := socket()
				for seq := range int64(3) {
					f.applyRank(st, message(5, r, seq, running(10*life)))
				}
				f.Release(st)
			}
		}
		if e := f.want("w5", load.Fresh); e.Restarts != 1 || intOf(t, e, 1, load.NumRunningReqs) != 10 {
			t.Errorf("%d restarts, running %d", e.Restarts, intOf(t, e, 1, load.NumRunningReqs))
		}
	})
}

// Case C4 and rule FR6: a rank that repeats itself stays fresh and young by marks, and its content stays the same content.
func TestApplyRank_EqualMessagesVouchAndChangeNothing(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{zmq(5, 1)})
		st := socket()
		idle := func(seq int64) *load.RankReport { return message(5, 0, seq, running(0)) }
		f.applyRank(st, idle(1))
		first := f.want("w5", load.Fresh)
		for seq := int64(2); time.Duration(seq-2)*time.Second < 5*DefaultZMQWindow; seq++ {
			time.Sleep(time.Second - DefaultRefreshInterval)
			before := f.Now()
			f.applyRank(st, idle(seq))
			time.Sleep(DefaultRefreshInterval)
			e := f.want("w5", load.Fresh)
			if e.WorkerStatus != first.WorkerStatus {
				t.Fatal("an equal message changed the worker's content")
			}
			if e.RankReceived(0) < before {
				t.Errorf("message %d is not vouched for: received at %d, want at %d or later", seq, e.RankReceived(0), before)
			}
		}
		f.applyRank(st, message(5, 0, 100, running(3)))
		if e := f.want("w5", load.Fresh); e.WorkerStatus == first.WorkerStatus || intOf(t, e, 0, load.NumRunningReqs) != 3 {
			t.Error("a message of other values did not change the content")
		}
	})
}

// Case E4: a smaller dp_size takes ranks away in one version; what their sockets still deliver is refused.
func TestApplyRank_FewerRanksVanishTogether(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{zmq(5, 8)})
		var streams []*load.Stream
		for r := range int32(8) {
			streams = append(streams, socket())
			f.applyRank(streams[r], message(5, r, 1))
		}
		f.want("w5", load.Fresh)
		f.SetWorkers([]load.Worker{zmq(5, 2)})
		if e := f.want("w5", load.Fresh); len(e.Ranks) != 2 {
			t.Errorf("%d ranks, want 2", len(e.Ranks))
		}
		refused(t, f.ApplyRank(streams[5], message(5, 5, 2)), load.ErrRankRange)
		f.SetWorkers(nil)
		f.settle()
		refused(t, f.ApplyRank(streams[0], message(5, 0, 2)), load.ErrWorkerRemoved)
		refused(t, f.ApplyRank(socket(), message(5, 0, 2)), load.ErrUnknownWorker)
	})
}

// Case E6: the worker has one transport, and one publisher for each rank.
func TestApplyRank_TwoPublishersDoNotFlicker(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{zmq(5, 1), w(6)})
		refused(t, f.Apply(push(), report(5, "srcA", 1, rank(0))), load.ErrWrongTransport)
		refused(t, f.ApplyRank(socket(), message(6, 0, 1)), load.ErrWrongTransport)
		st := socket()
		switches, last := 0, int64(0)
		for i := range int64(100) {
			_ = f.ApplyRank(st, message(5, 0, 1000+i, running(2)))
			_ = f.ApplyRank(st, message(5, 0, 5+i, running(60)))
			if v := intOf(t, f.worker("w5"), 0, load.NumRunningReqs); v != last {
				switches, last = switches+1, v
			}
			time.Sleep(100 * time.Millisecond)
		}
		if e := f.worker("w5"); switches > 2 || e.Anomalies&load.SourceConflict == 0 {
			t.Errorf("%d switches, anomalies %v", switches, e.Anomalies.Names())
		}
	})
}

// Case B3 and rule SEQ2: a gap is counted and holds nothing up; what arrived and was skipped is not missed, and no odd
// figure makes the count fall.
func TestApplyRank_OnlyWhatDidNotArriveIsMissed(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{zmq(5, 1)})
		st := socket()
		for _, step := range []struct {
			name      string
			seq       int64
			conflated uint64
			missed    uint64 // so far
		}{
			{"the first one", 1, 0, 0},
			{"the next one", 2, 0, 0},
			{"a jump", 500, 0, 497},
			{"the one after it", 501, 0, 497},
			{"three of three were skipped", 505, 3, 497},
			{"two of nine were skipped", 515, 2, 504},
			{"more were skipped than the gap holds", 517, 90, 504},
			{"a duplicate", 517, 4, 504},
			{"a restart after some were skipped", 3, 7, 504},
			{"a gap after the restart", 5, 0, 505},
		} {
			err := f.ApplyRank(st, &load.RankReport{WorkerID: "w5", Sequence: step.seq, Load: rank(0, running(step.seq)), Conflated: step.conflated})
			if (err != nil) != (step.name == "a duplicate") {
				t.Fatalf("%s: %v", step.name, err)
			}
			if missed := f.counts.gaps.Load(); missed != step.missed {
				t.Errorf("%s: %d missed, want %d", step.name, missed, step.missed)
			}
			if n := intOf(t, f.want("w5", load.Fresh), 0, load.NumRunningReqs); n != step.seq {
				t.Errorf("%s: running %d, want %d", step.name, n, step.seq)
			}
		}
	})
}

// Case B5: wild sequences, again and again, neither add to what was missed nor lock the rank out.
func TestApplyRank_WildSequencesPoisonNothing(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{zmq(5, 1)})
		st := socket()
		for i := range int64(4) {
			f.applyRank(st, message(5, 0, 10*i+1, running(1)))
			f.applyRank(st, message(5, 0, 1<<63-1-i, running(90)))
			f.applyRank(st, message(5, 0, 10*i+2, running(2)))
			f.applyRank(st, message(5, 0, 10*i+5, running(3)))
			e := f.want("w5", load.Fresh)
			if n := intOf(t, e, 0, load.NumRunningReqs); n != 3 || e.Restarts != uint32(i+1) {
				t.Errorf("running %d after %d restarts, want 3 after %d", n, e.Restarts, i+1)
			}
			time.Sleep(11 * time.Second)
		}
		if missed := f.counts.gaps.Load(); missed != 4*2+3*5 {
			t.Errorf("%d missed, want what is missing between the sane ones", missed)
		}
	})
}

// Rule FR5: in LoadStat arrays an unknown capacity leaves the rank fresh.
func TestApplyRank_OptionalCapacity(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{zmq(5, 1)})
		st := socket()
		r := message(5, 0, 1, setInt(load.MaxTotalNumTokens, 0))
		f.applyRank(st, r)
		f.want("w5", load.Stale)
		r = message(5, 0, 2, setInt(load.MaxTotalNumTokens, 0))
		r.CapacityOptional = true
		f.applyRank(st, r)
		e := f.want("w5", load.Fresh)
		if _, ok := e.Aggregate.Int(load.FreeTokens); ok {
			t.Error("free tokens of an unknown capacity are known")
		}
	})
}

// Case C7's kind: a rank that a publication caught at its deadline is fresh with its next message, equal or not, while
// another rank is fresh all the time.
func TestApplyRank_ARankBuiltAtItsDeadlineIsFreshWithItsNextMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		a.SetWorkers(pointers([]load.Worker{zmq(5, 2)}))
		sockets := []*load.Stream{socket(), socket()}
		tell := func(r *load.RankReport) {
			t.Helper()
			if err := a.ApplyRank(sockets[r.Load.DPRank], r); err != nil {
				t.Fatal(err)
			}
		}
		freshness := func() load.Freshness {
			e, _ := a.Current().Snapshot.Workers.Find("w5")
			return e.Freshness
		}
		tell(message(5, 0, 1))
		tell(message(5, 1, 1))
		time.Sleep(DefaultZMQWindow)
		tell(message(5, 0, 2, running(2)))
		a.publish(true) // nobody has looked at the deadlines
		if f := freshness(); f != load.Stale {
			t.Fatalf("%s at the deadline of rank 1, want stale", f)
		}
		tell(message(5, 1, 2))
		a.publish(true)
		if f := freshness(); f != load.Fresh {
			t.Errorf("%s after a message of equal values, want fresh", f)
		}
	})
}
