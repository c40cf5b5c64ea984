package engine

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loadmonitor/loadmonitor/load"
)

var allRoles = []load.Role{load.RoleRegular, load.RolePrefill, load.RoleDecode}

// run moves a model through seconds of its life in ticks of a tenth and calls each after every tick.
func runModel(m *model, seconds int, each func(t float64, sample []load.RankLoad)) {
	begin := m.now
	for i := range seconds * 10 {
		t := begin + float64(i+1)/10
		m.advance(t, true)
		each(t, m.sample(int64(t*1000)))
	}
}

// checkRank verifies what must hold for a rank at any moment.
func checkRank(t *testing.T, r *rank, l *load.RankLoad) {
	t.Helper()
	waiting, running := int64(r.waiting.len()), int64(r.active())
	if c := r.count; c.arrived != c.finished+c.rejected+waiting+running {
		t.Fatalf("arrived %d != finished %d + rejected %d + waiting %d + running %d", c.arrived, c.finished, c.rejected, waiting, running)
	}
	var held, prompts, uncached int64
	for i, q := range r.running {
		held += int64(q.prompt)
		if q.done < r.clock-1e-6 {
			t.Fatalf("a request that was done at %v still runs at %v", q.done, r.clock)
		}
		if i > 0 && r.running[(i-1)/2].done > q.done {
			t.Fatal("running is not a heap")
		}
	}
	for i := range r.waiting.n {
		q := r.waiting.ring[(r.waiting.head+i)%len(r.waiting.ring)]
		prompts += int64(q.prompt)
		uncached += int64(q.uncached)
		if q.uncached < 0 || q.uncached > q.prompt || q.output < 1 {
			t.Fatalf("request %+v", q)
		}
	}
	if held != r.held || prompts != r.waitingPrompt || uncached != r.waitingUncached {
		t.Fatalf("sums held %d prompts %d uncached %d, want %d %d %d", r.held, r.waitingPrompt, r.waitingUncached, held, prompts, uncached)
	}
	for s := range load.NumIntSignals {
		if v, _ := l.Int(s); v < 0 {
			t.Fatalf("%v is %d", s, v)
		}
	}
	for s := range load.NumFloatSignals {
		if v, _ := l.Float(s); v < 0 || !load.Finite(v) {
			t.Fatalf("%v is %v", s, v)
		}
	}
	at := func(s load.IntSignal) int64 { v, _ := l.Int(s); return v }
	if used, most := at(load.NumUsedTokens), at(load.MaxTotalNumTokens); used > most || at(load.NumTotalTokens) < used {
		t.Fatalf("used %d, total %d, max %d", used, at(load.NumTotalTokens), most)
	}
	if at(load.NumRunningReqs) > at(load.MaxRunningRequests) {
		t.Fatalf("running %d of %d", at(load.NumRunningReqs), at(load.MaxRunningRequests))
	}
}

func TestModel_NumbersStayConsistentUnderAnySeedRoleAndLoad(t *testing.T) {
	for _, role := range allRoles {
		for _, offered := range []float64{0.1, 0.6, 2.5} {
			for seed := range uint64(2) {
				t.Run(fmt.Sprintf("%v/load %v/seed %d", role, offered, seed), func(t *testing.T) {
					m := newModel(role, 3, offered, seed, 7, 1, 0)
					var before [3]tally
					runModel(m, 150, func(_ float64, sample []load.RankLoad) {
						for i := range m.ranks {
							r := &m.ranks[i]
							checkRank(t, r, &sample[i])
							if c, b := r.count, before[i]; c.arrived < b.arrived || c.finished < b.finished || c.generated < b.generated || c.computed < b.computed || c.busy < b.busy {
								t.Fatalf("a counter fell: %+v after %+v", c, b)
							}
							before[i] = r.count
						}
					})
					for i, c := range before {
						if c.finished == 0 {
							t.Errorf("rank %d finished nothing", i)
						}
					}
				})
			}
		}
	}
}

func TestModel_SameSeedAndTicksGiveTheSameNumbers(t *testing.T) {
	trace := func(seed uint64, worker, life int) (all [][]load.RankLoad) {
		runModel(newModel(load.RoleRegular, 2, 0.8, seed, worker, life, 5), 60, func(_ float64, sample []load.RankLoad) { all = append(all, sample) })
		return all
	}
	same := func(a, b [][]load.RankLoad) bool {
		return cmp.Equal(a, b, cmp.Comparer(func(x, y load.RankLoad) bool { return x == y }))
	}
	base := trace(1, 1, 1)
	if !same(base, trace(1, 1, 1)) {
		t.Error("the same seed gave other numbers")
	}
	for name, other := range map[string][][]load.RankLoad{"seed": trace(2, 1, 1), "worker": trace(1, 2, 1), "life": trace(1, 1, 2)} {
		if same(base, other) {
			t.Errorf("another %s gave the same numbers", name)
		}
	}
}

func TestModel_SaturationFillsTheQueueAndLevelsThroughput(t *testing.T) {
	m := newModel(load.RoleRegular, 2, 4, 1, 1, 1, 0)
	p := profiles[load.RoleRegular]
	var last []load.RankLoad
	runModel(m, 400, func(_ float64, sample []load.RankLoad) { last = sample })
	for i := range last {
		waiting, _ := last[i].Int(load.NumWaitingReqs)
		if waiting < maxQueued*9/10 || m.ranks[i].count.rejected == 0 {
			t.Errorf("rank %d: waiting %d, rejected %d at four times what it can serve", i, waiting, m.ranks[i].count.rejected)
		}
		rate, _ := last[i].Float(load.GenThroughput)
		if most := 1.08 / p.stepPerRequest; rate <= 0 || rate > most {
			t.Errorf("rank %d: throughput %v, want above 0 and at most %v", i, rate, most)
		}
	}
}

func TestModel_LightLoadHardlyQueues(t *testing.T) {
	m := newModel(load.RoleRegular, 2, 0.3, 1, 1, 1, 0)
	waiting, samples := int64(0), int64(0)
	runModel(m, 300, func(_ float64, sample []load.RankLoad) {
		for i := range sample {
			n, _ := sample[i].Int(load.NumWaitingReqs)
			waiting += n
			samples++
		}
	})
	if mean := float64(waiting) / float64(samples); mean > 1 {
		t.Errorf("%v requests wait on average at a third of the load", mean)
	}
}

func TestModel_FullCacheRetractsAndLosesNothing(t *testing.T) {
	m := newModel(load.RoleDecode, 1, 3, 1, 1, 1, 0)
	m.p.maxTokens = 60_000 // far less than the slots would hold
	m.p.prompt = sizes{400, 0.5}
	runModel(m, 300, func(_ float64, sample []load.RankLoad) { checkRank(t, &m.ranks[0], &sample[0]) })
	if c := m.ranks[0].count; c.retracted == 0 || c.finished == 0 {
		t.Errorf("retracted %d, finished %d: want both above 0", c.retracted, c.finished)
	}
}

func TestModel_RolesDiffer(t *testing.T) {
	for _, role := range allRoles {
		m := newModel(role, 1, 0.8, 3, 1, 1, 0)
		sawPrefill, sawTokens := false, false
		runModel(m, 120, func(_ float64, sample []load.RankLoad) {
			l := &sample[0]
			prefill, _ := l.Float(load.PrefillThroughput)
			tokens, _ := l.Float(load.GenThroughput)
			if prefill > 0 && m.ranks[0].count.busy == 0 {
				t.Fatal("prefill throughput before the first prefill")
			}
			sawPrefill = sawPrefill || prefill > 0
			sawTokens = sawTokens || tokens > 0
			if _, told := l.Float(load.Utilization); told != (role != load.RolePrefill) {
				t.Fatalf("%v tells utilization: %v", role, told)
			}
			if uncached, _ := l.Int(load.NumWaitingUncachedTokens); role == load.RoleDecode && uncached != 0 {
				t.Fatalf("a decode rank waits for %d uncached tokens", uncached)
			}
		})
		if sawPrefill != (role != load.RoleDecode) || sawTokens != (role != load.RolePrefill) {
			t.Errorf("%v: prefills %v, makes tokens %v", role, sawPrefill, sawTokens)
		}
	}
}

// Case C8: a rank that has become idle says so.
func TestModel_IdleRankHasNoThroughput(t *testing.T) {
	m := newModel(load.RoleRegular, 1, 0.5, 1, 1, 1, 0)
	var last []load.RankLoad
	runModel(m, 30, func(_ float64, sample []load.RankLoad) { last = sample })
	if rate, _ := last[0].Float(load.GenThroughput); rate == 0 {
		t.Fatal("the busy rank has no throughput")
	}
	m.mean = 1e-9 // nobody asks any more
	runModel(m, 300, func(_ float64, sample []load.RankLoad) { last = sample })
	for _, s := range []load.IntSignal{load.NumRunningReqs, load.NumWaitingReqs, load.NumUsedTokens, load.NumTotalTokens} {
		if v, _ := last[0].Int(s); v != 0 {
			t.Errorf("%v is %d", s, v)
		}
	}
	if rate, _ := last[0].Float(load.GenThroughput); rate != 0 {
		t.Errorf("throughput %v", rate)
	}
}

func TestModel_HotRankTakesMost(t *testing.T) {
	m := newModel(load.RoleRegular, 4, 0.6, 1, 1, 1, 0)
	m.hot = 2
	runModel(m, 60, func(float64, []load.RankLoad) {})
	for i := range m.ranks {
		if i != 2 && m.ranks[i].count.arrived*5 > m.ranks[2].count.arrived {
			t.Errorf("rank %d got %d requests, the hot one %d", i, m.ranks[i].count.arrived, m.ranks[2].count.arrived)
		}
	}
	if m.ranks[2].waiting.len() == 0 {
		t.Error("the hot rank does not queue")
	}
}

func TestModel_HungSchedulerOnlyQueues(t *testing.T) {
	m := newModel(load.RoleRegular, 2, 0.8, 1, 1, 1, 0)
	runModel(m, 60, func(float64, []load.RankLoad) {})
	before := [2]tally{m.ranks[0].count, m.ranks[1].count}
	m.advance(m.now+20, false)
	for i := range m.ranks {
		r := &m.ranks[i]
		if r.count.finished != before[i].finished || r.count.generated != before[i].generated || r.count.computed != before[i].computed {
			t.Errorf("rank %d worked while hung", i)
		}
		if r.count.arrived == before[i].arrived || r.waiting.len() == 0 {
			t.Errorf("rank %d: nothing queued in 20 s", i)
		}
	}
	finished := m.ranks[0].count.finished
	runModel(m, 120, func(_ float64, sample []load.RankLoad) {
		for i := range sample {
			checkRank(t, &m.ranks[i], &sample[i])
		}
	})
	if m.ranks[0].count.finished == finished {
		t.Error("nothing finished after the hang")
	}
}

func TestDemand_AveragesOneAndBurstsHitTheFleetTogether(t *testing.T) {
	const engines, seconds = 40, 3000
	sum := 0.0
	together := 0 // moments when at least half of the fleet is above 1.5
	for s := range seconds {
		high := 0
		for w := range uint64(engines) {
			f := demand{seed: 5, worker: w}.factor(float64(s))
			if f < 0 || math.IsNaN(f) {
				t.Fatalf("factor %v", f)
			}
			sum += f
			if f > 1.5 {
				high++
			}
		}
		if high > engines/2 {
			together++
		}
	}
	if mean := sum / (engines * seconds); mean < 0.85 || mean > 1.25 {
		t.Errorf("mean demand %v, want about 1", mean)
	}
	if together == 0 || together > seconds/4 {
		t.Errorf("most of the fleet peaked together in %d of %d seconds", together, seconds)
	}
}

func TestQueue_KeepsOrderFromBothEnds(t *testing.T) {
	var q queue
	var want []request
	next := int32(1)
	state := uint64(1)
	for range 10_000 {
		state = mix(state)
		switch op := state % 5; {
		case op < 2:
			q.pushBack(request{prompt: next})
			want = append(want, request{prompt: next})
			next++
		case op == 2:
			q.pushFront(request{prompt: next})
			want = append([]request{{prompt: next}}, want...)
			next++
		case len(want) > 0:
			if got := q.front(); got != want[0] {
				t.Fatalf("front %v, want %v", got, want[0])
			}
			if got := q.popFront(); got != want[0] {
				t.Fatalf("popped %v, want %v", got, want[0])
			}
			want = want[1:]
		}
		if q.len() != len(want) {
			t.Fatalf("length %d, want %d", q.len(), len(want))
		}
	}
}

func BenchmarkModel_SecondOfOneEngine(b *testing.B) {
	for _, ranks := range []int{1, 8} {
		b.Run(fmt.Sprintf("ranks=%d", ranks), func(b *testing.B) {
			b.ReportAllocs()
			m := newModel(load.RoleRegular, ranks, DefaultLoad, 1, 1, 1, 0)
			for b.Loop() {
				runModel(m, 1, func(float64, []load.RankLoad) {})
			}
		})
	}
}
