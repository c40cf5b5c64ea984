package aggregator

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

func refused(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error = %v, want %v", err, want)
	}
}

func ended(t *testing.T, st *load.Stream, want error) {
	t.Helper()
	refused(t, st.Err(), want)
}

func TestID1_AReportNeverCreatesAWorker(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		refused(t, f.Apply(push(), report(5, "srcA", 1, rank(0))), load.ErrNotReady)
		f.SetWorkers([]load.Worker{w(5)})
		refused(t, f.Apply(push(), report(6, "srcA", 1, rank(0))), load.ErrUnknownWorker)
		if n := f.settle().Workers.Len(); n != 1 {
			t.Errorf("%d workers, want 1", n)
		}
		f.want("w5", load.Missing)
	})
}

// Case A6: spellings of one address are one worker.
func TestID1_SpellingsOfOneAddress(t *testing.T) {
	named := func(worker load.Worker, addr string) load.Worker {
		var err error
		if worker.URL, worker.Origin, err = load.ParseAddress(addr); err != nil {
			t.Fatal(err)
		}
		return worker
	}
	for _, c := range []struct{ registered, reported string }{
		{"http://w1.pool:30000/", "W1.POOL:30000"},
		{"w1.pool:30000", "http://w1.pool:30000/v1/"},
		{"[2001:DB8::5]:30000", "http://[2001:db8:0:0::5]:30000"},
		{"http://w1.pool", "http://w1.pool:80"},
	} {
		t.Run(c.registered, func(t *testing.T) {
			inBubble(t, Options{}, func(t *testing.T, f *fleet) {
				f.SetWorkers([]load.Worker{named(w(5), c.registered)})
				r := report(5, "srcA", 1, rank(0))
				r.Claim.Address = c.reported
				f.apply(push(), r)
				f.want("w5", load.Fresh)
			})
		})
	}
}

// Case A4: role changes and absent roles.
func TestID2_RoleMustMatch(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		prefill := func(worker *load.Worker) { worker.Role = load.RolePrefill }
		f.SetWorkers([]load.Worker{w(5, prefill)})
		st := push()
		r := report(5, "srcA", 1, rank(0))
		r.Claim.Role = load.RolePrefill
		f.apply(st, r)
		before := f.want("w5", load.Fresh)

		f.SetWorkers([]load.Worker{w(5)}) // decode now
		after := f.want("w5", load.Missing)
		if after.Handle == before.Handle || len(after.Ranks) != 0 {
			t.Errorf("handle %d with %d ranks after the role changed, want a new handle without ranks", after.Handle, len(after.Ranks))
		}
		ended(t, st, load.ErrWorkerRemoved)
		r = report(5, "srcA", 2, rank(0))
		r.Claim.Role = load.RolePrefill
		refused(t, f.Apply(push(), r), load.ErrRoleMismatch)
		if e := f.want("w5", load.Missing); !strings.Contains(e.Reason, "registered as decode") {
			t.Errorf("reason %q does not say why the engine is refused", e.Reason)
		}
		r = report(5, "srcA", 3, rank(0))
		r.Claim.Role = load.RoleUnspecified
		refused(t, f.Apply(push(), r), load.ErrRoleMismatch)
		f.want("w5", load.Missing)
		f.apply(push(), report(5, "srcA", 4, rank(0)))
		f.want("w5", load.Fresh)
	})
}

// Registration may learn of models while a stream is open.
func TestID2_ModelIsComparedWithWhatIsRegisteredNow(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5, func(x *load.Worker) { x.Models = nil })})
		st := push()
		f.apply(st, report(5, "srcA", 1, rank(0)))
		f.SetWorkers([]load.Worker{w(5, func(x *load.Worker) { x.Models = []string{"m2"} })})
		refused(t, f.Apply(st, report(5, "srcA", 2, rank(0))), load.ErrModelMismatch)
	})
}

func TestID2_IdentityStaysWithinAStream(t *testing.T) {
	for name, change := range map[string]func(*load.Report){
		"worker": func(r *load.Report) { r.Claim.Address = "http://127.0.0.6:30000" },
		"type":   func(r *load.Report) { r.Claim.Role = load.RolePrefill },
		"source": func(r *load.Report) { r.SourceInstance = "srcB" },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{}, func(t *testing.T, f *fleet) {
				f.SetWorkers([]load.Worker{w(5), w(6)})
				st := push()
				f.apply(st, report(5, "srcA", 1, rank(0)))
				r := report(5, "srcA", 2, rank(0, running(9)))
				change(r)
				refused(t, f.Apply(st, r), load.ErrIdentityChanged)
				if v := intOf(t, f.want("w5", load.Fresh), 0, load.NumRunningReqs); v != 1 {
					t.Errorf("running = %d, want 1 as before", v)
				}
				f.want("w6", load.Missing)
			})
		})
	}
}

// Case A3: another worker at the same address starts with nothing and its model counts.
func TestID2_AnotherWorkerAtTheSameAddress(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		st := push()
		f.apply(st, report(5, "srcA", 100, rank(0, running(40))))
		f.want("w5", load.Fresh)
		f.SetWorkers(nil)
		if s := f.settle(); s.Workers.Len() != 0 || s.State != load.FleetNoWorkers {
			t.Errorf("%d workers, state %s, want 0 and no_workers", s.Workers.Len(), s.State)
		}
		f.SetWorkers([]load.Worker{w(5, func(worker *load.Worker) { worker.ID, worker.Models = "other", []string{"m2"} })})
		e := f.want("other", load.Missing)
		if len(e.Ranks) != 0 || e.Sequence != 0 || e.SourceInstance != "" {
			t.Errorf("the new worker has history: %+v", e.WorkerStatus)
		}
		refused(t, f.Apply(push(), report(5, "srcA", 101, rank(0))), load.ErrModelMismatch)
		f.want("other", load.Missing)
	})
}

func TestID3_OneOriginTwiceFeedsNeither(t *testing.T) {
	conflict := func(id string) func(*load.Worker) {
		return func(worker *load.Worker) { worker.ID, worker.Conflict = id, "same address as another worker" }
	}
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		st := push()
		f.apply(st, report(5, "srcA", 1, rank(0)))
		f.SetWorkers([]load.Worker{w(5, conflict("w5")), w(5, conflict("copy"))})
		for _, id := range []string{"w5", "copy"} {
			if e := f.want(id, load.Missing); e.Reason != "same address as another worker" {
				t.Errorf("worker %s: reason %q", id, e.Reason)
			}
		}
		ended(t, st, load.ErrWorkerRemoved)
		refused(t, f.Apply(push(), report(5, "srcA", 2, rank(0))), load.ErrOriginConflict)
		f.SetWorkers([]load.Worker{w(5)})
		f.apply(push(), report(5, "srcA", 3, rank(0)))
		f.want("w5", load.Fresh)
	})
}

// Whoever feeds one of them already, over whatever transport, is cut off as well, also when registration did not notice.
func TestID3_AnUnnoticedConflictIsOne(t *testing.T) {
	sockets := func(worker *load.Worker) {
		worker.ID, worker.Transport, worker.ExpectedRanks = "copy", load.TransportZMQ, 1
	}
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		st := push()
		f.apply(st, report(5, "srcA", 1, rank(0)))
		f.SetWorkers([]load.Worker{w(5), w(5, sockets)})
		ended(t, st, load.ErrWorkerRemoved)
		refused(t, f.Apply(push(), report(5, "srcA", 2, rank(0))), load.ErrOriginConflict)
		refused(t, f.ApplyRank(load.NewStream(load.TransportZMQ), &load.RankReport{WorkerID: "copy", Load: rank(0)}), load.ErrOriginConflict)
		for _, id := range []string{"w5", "copy"} {
			if e := f.want(id, load.Missing); !strings.Contains(e.Reason, "127.0.0.5:30000") {
				t.Errorf("worker %s: reason %q", id, e.Reason)
			}
		}
	})
}

// Case A1: the new source's values count at once, the old one is refused wherever it comes from.
func TestID4_ANewSourceInstanceSupersedes(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		first, late, second := push(), push(), push()
		f.apply(first, report(5, "srcA", 500, rank(0, running(40)), rank(1), rank(2), rank(3)))
		f.settle()
		f.Release(first)
		f.apply(second, report(5, "srcB", 1, rank(0, running(0))))
		refused(t, f.Apply(late, report(5, "srcA", 501, rank(0), rank(1), rank(2), rank(3))), load.ErrRetiredSource)
		e := f.worker("w5")
		if e.Freshness != load.Fresh || e.SourceInstance != "srcB" || len(e.Ranks) != 1 || e.Restarts != 1 {
			t.Errorf("%s by %s, %d ranks, %d restarts: want fresh by srcB, 1 rank, 1 restart", e.Freshness, e.SourceInstance, len(e.Ranks), e.Restarts)
		}
		if v := intOf(t, e, 0, load.NumRunningReqs); v != 0 {
			t.Errorf("running = %d, want 0", v)
		}
	})
}

// Case B4: two live sources of one worker; one switch, no flicker, a visible sign.
func TestID4_TwoLiveSourcesSwitchOnce(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		stA, stB := push(), push()
		f.apply(stA, report(5, "srcA", 100, rank(0, running(1))))
		f.settle()
		f.apply(stB, report(5, "srcB", 5, rank(0, running(90))))
		ended(t, stA, load.ErrSourceSuperseded)
		f.Release(stA)
		for i := range uint64(300) { // 30 s at 10 Hz; the old engine reconnects each time
			time.Sleep(100 * time.Millisecond)
			refused(t, f.Apply(push(), report(5, "srcA", 101+i, rank(0, running(1)))), load.ErrRetiredSource)
			f.apply(stB, report(5, "srcB", 6+i, rank(0, running(90))))
			if v := intOf(t, f.worker("w5"), 0, load.NumRunningReqs); v != 90 {
				t.Fatalf("running = %d after the switch, want 90", v)
			}
		}
		e := f.want("w5", load.Fresh)
		if e.Restarts != 1 || e.Anomalies&load.SourceConflict == 0 {
			t.Errorf("%d restarts, anomalies %v: want 1 and source_conflict", e.Restarts, e.Anomalies.Names())
		}
	})
}

// Case M4, the part of this room: what is remembered of replaced sources is bounded.
func TestID4_RetiredSourcesAreBounded(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		for i := range 1000 {
			f.apply(push(), report(5, fmt.Sprint("src", i), 1, rank(0)))
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if n := len(f.workerLocked("w5").retired); n != maxRetired {
			t.Errorf("%d retired sources remembered, want %d", n, maxRetired)
		}
		if n := len(f.streams); n != 1 {
			t.Errorf("%d streams bound, want 1", n)
		}
	})
}

func TestID5_ASecondStreamOfTheSameSourceTakesOver(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		half, fresh := push(), push()
		f.apply(half, report(5, "srcA", 1, rank(0)))
		f.apply(fresh, report(5, "srcA", 2, rank(0, running(2))))
		ended(t, half, load.ErrStreamSuperseded)
		f.Release(half) // the late ending of the older stream
		refused(t, f.Apply(half, report(5, "srcA", 3, rank(0, running(3)))), load.ErrStreamSuperseded)
		f.apply(fresh, report(5, "srcA", 4, rank(0, running(4))))
		e := f.want("w5", load.Fresh)
		if v := intOf(t, e, 0, load.NumRunningReqs); v != 4 || e.Restarts != 0 {
			t.Errorf("running = %d, %d restarts: want 4 and none", v, e.Restarts)
		}
		if fresh.Err() != nil {
			t.Errorf("the newer stream was ended: %v", fresh.Err())
		}
	})
}

func TestID6_OneTransportAtATime(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5, func(worker *load.Worker) { worker.Transport = load.TransportZMQ })})
		refused(t, f.Apply(push(), report(5, "srcA", 1, rank(0))), load.ErrWrongTransport)
		f.want("w5", load.Missing)
	})
}

// Case A5: under the race detector, removal wins over reports that keep coming.
func TestID7_ARemovedWorkerStaysGone(t *testing.T) { removeWhileTheyReport(t, 50) }

// removeWhileTheyReport removes half of the workers while all report, round after round. Each stream of a removed worker
// gets one refusal, a new one another, and no later version shows the worker.
func removeWhileTheyReport(t *testing.T, rounds int) {
	t.Helper()
	a, err := New(Options{PublishInterval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	go a.Run(t.Context())
	all := make([]load.Worker, 50)
	for i := range all {
		all[i] = w(i + 1)
	}
	const kept = 25
	for round := range rounds {
		a.SetWorkers(pointers(all))
		var removed atomic.Bool
		var reporting, turnedAway sync.WaitGroup
		turnedAway.Add(len(all) - kept)
		stop := make(chan struct{})
		for i := range all {
			reporting.Go(func() {
				seq := uint64(0)
				send := func(st *load.Stream) error {
					seq++
					return a.Apply(st, report(i+1, fmt.Sprint("src", round), seq, rank(0, running(int64(seq)))))
				}
				st := push()
				defer a.Release(st)
				told := false
				tick := time.NewTicker(2 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-stop:
						return
					case <-tick.C:
					}
					gone := i >= kept && removed.Load()
					switch err := send(st); {
					case err != nil && (i < kept || !errors.Is(err, load.ErrWorkerRemoved)):
						t.Errorf("worker %d: %v", i+1, err)
					case err == nil && gone:
						t.Errorf("worker %d: a report is accepted after its removal", i+1)
					}
					if !gone {
						continue
					}
					again := push()
					if err := send(again); !errors.Is(err, load.ErrUnknownWorker) {
						t.Errorf("worker %d on a new stream after its removal: %v, want that it is unknown", i+1, err)
					}
					a.Release(again)
					if !told {
						told = true
						turnedAway.Done()
					}
				}
			})
		}
		for a.Current().Snapshot.Summary.Fresh < len(all) {
			<-a.Current().Next
		}
		a.SetWorkers(pointers(all[:kept]))
		removed.Store(true)
		without := func() bool { return a.Current().Snapshot.Workers.Len() == kept }
		for !without() {
			<-a.Current().Next
		}
		turnedAway.Wait()
		for range 3 {
			<-a.Current().Next
			if !without() {
				t.Fatalf("%d workers in a version above the removal's", a.Current().Snapshot.Workers.Len())
			}
		}
		close(stop)
		reporting.Wait()
		if t.Failed() {
			t.Fatalf("round %d", round+1)
		}
	}
}
