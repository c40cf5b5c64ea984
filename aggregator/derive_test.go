package aggregator

import (
	"math"
	"testing"

	"github.com/loadmonitor/loadmonitor/load"
)

type ints map[load.IntFigure]int64
type floats map[load.FloatFigure]float64

// Rule VAL4; cases C8, D2, D4, D5 and D7.
func TestAggregate_VAL4(t *testing.T) {
	unset := func(s load.IntSignal) func(*load.RankLoad) {
		return func(r *load.RankLoad) { r.UnsetInt(s) }
	}
	setFloat := func(s load.FloatSignal, v float64) func(*load.RankLoad) {
		return func(r *load.RankLoad) { r.SetFloat(s, v) }
	}
	waiting := func(v int64) func(*load.RankLoad) { return setInt(load.NumWaitingReqs, v) }
	for _, c := range []struct {
		name          string
		ranks         []load.RankLoad
		ints          ints
		floats        floats
		unknownInts   []load.IntFigure
		unknownFloats []load.FloatFigure
	}{
		{
			name:  "two sane ranks",
			ranks: []load.RankLoad{rank(0, setInt(load.NumWaitingUncachedTokens, 50)), rank(1, setInt(load.NumWaitingUncachedTokens, 150))},
			ints: ints{
				load.SumRunningReqs: 2, load.SumWaitingReqs: 0, load.SumWaitingUncachedTokens: 200, load.SumUsedTokens: 200,
				load.SumTotalTokens: 200, load.SumMaxTotalTokens: 2000, load.SumMaxRunningRequests: 128, load.TotalRequests: 2,
				load.FreeTokens: 1800, load.AvailableSlots: 126, load.MaxRankWaitingReqs: 0,
			},
			floats: floats{
				load.SumGenThroughput: 100, load.QueuePressure: 2, load.RequestUtilization: 2.0 / 128, load.WeightedTokenUsage: 0.1,
				load.MaxRankTokenUsage: 0.1,
			},
			unknownFloats: []load.FloatFigure{load.PrefillRate, load.PrefillQueueMs},
		},
		{
			name: "the peak rank can be read (D4)",
			ranks: []load.RankLoad{rank(0), rank(1), rank(2, waiting(11), setInt(load.NumUsedTokens, 990), setFloat(load.TokenUsage, 0.99)),
				rank(3)},
			ints:   ints{load.SumWaitingReqs: 11, load.MaxRankWaitingReqs: 11},
			floats: floats{load.MaxRankTokenUsage: 0.99},
		},
		{
			name:  "total above capacity is not corrupt, free never negative (D2)",
			ranks: []load.RankLoad{rank(0, setInt(load.NumUsedTokens, 800), setInt(load.NumTotalTokens, 1400)), rank(1, setInt(load.NumUsedTokens, 1300))},
			ints:  ints{load.SumUsedTokens: 2100, load.SumTotalTokens: 1500, load.FreeTokens: 0},
		},
		{
			name:   "running above the limit saturates slots and shows above 1 (D7)",
			ranks:  []load.RankLoad{rank(0, running(300))},
			ints:   ints{load.AvailableSlots: 0, load.SumRunningReqs: 300, load.SumMaxRunningRequests: 64},
			floats: floats{load.RequestUtilization: 300.0 / 64},
		},
		{
			name:          "no capacity makes what needs it unknown (D5)",
			ranks:         []load.RankLoad{rank(0), rank(1, unset(load.MaxTotalNumTokens), unset(load.MaxRunningRequests))},
			ints:          ints{load.SumRunningReqs: 2, load.TotalRequests: 2, load.SumUsedTokens: 200},
			floats:        floats{load.MaxRankTokenUsage: 0.1},
			unknownInts:   []load.IntFigure{load.SumMaxTotalTokens, load.FreeTokens, load.AvailableSlots, load.SumMaxRunningRequests},
			unknownFloats: []load.FloatFigure{load.WeightedTokenUsage, load.RequestUtilization},
		},
		{
			name:          "an untold queue is not an empty one (VAL1)",
			ranks:         []load.RankLoad{rank(0, unset(load.NumWaitingReqs), unset(load.NumWaitingUncachedTokens))},
			unknownInts:   []load.IntFigure{load.SumWaitingReqs, load.TotalRequests, load.MaxRankWaitingReqs},
			unknownFloats: []load.FloatFigure{load.QueuePressure},
		},
		{
			name:          "no throughput gives no pressure (C8)",
			ranks:         []load.RankLoad{rank(0, setFloat(load.GenThroughput, 0), setInt(load.NumWaitingUncachedTokens, 9))},
			floats:        floats{load.SumGenThroughput: 0},
			unknownFloats: []load.FloatFigure{load.QueuePressure},
		},
		{
			name:   "sums saturate",
			ranks:  []load.RankLoad{rank(0, running(math.MaxInt64)), rank(1, running(math.MaxInt64), waiting(7))},
			ints:   ints{load.SumRunningReqs: math.MaxInt64, load.TotalRequests: math.MaxInt64, load.AvailableSlots: 0},
			floats: floats{load.RequestUtilization: float64(math.MaxInt64) / 128},
		},
		{
			name:          "floats that overflow are unknown",
			ranks:         []load.RankLoad{rank(0, setFloat(load.GenThroughput, math.MaxFloat64)), rank(1, setFloat(load.GenThroughput, math.MaxFloat64))},
			unknownFloats: []load.FloatFigure{load.SumGenThroughput, load.QueuePressure},
		},
		{
			name:   "the engine's own prefill rate",
			ranks:  []load.RankLoad{rank(0, setFloat(load.PrefillThroughput, 500), setInt(load.NumWaitingUncachedTokens, 1000))},
			floats: floats{load.PrefillRate: 500, load.PrefillQueueMs: 2000},
		},
		{
			name:          "a prefill rate of one rank is not the worker's",
			ranks:         []load.RankLoad{rank(0, setFloat(load.PrefillThroughput, 500)), rank(1)},
			unknownFloats: []load.FloatFigure{load.PrefillRate, load.PrefillQueueMs},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			ranks := make([]load.Rank, len(c.ranks))
			state := make([]rankState, len(c.ranks))
			for i := range c.ranks {
				ranks[i] = load.Rank{Load: c.ranks[i], Freshness: load.Fresh}
				state[i].observePrefill(new(load.RankLoad), &c.ranks[i])
			}
			got := aggregate(ranks, state)
			if got.RankCount != uint32(len(ranks)) {
				t.Errorf("rank_count = %d", got.RankCount)
			}
			for f, want := range c.ints {
				if v, ok := got.Int(f); !ok || v != want {
					t.Errorf("%s = %d (known: %v), want %d", f, v, ok, want)
				}
			}
			for f, want := range c.floats {
				if v, ok := got.Float(f); !ok || math.Abs(v-want) > 1e-9*math.Abs(want) {
					t.Errorf("%s = %v (known: %v), want %v", f, v, ok, want)
				}
			}
			for _, f := range c.unknownInts {
				if v, ok := got.Int(f); ok {
					t.Errorf("%s = %d, want unknown", f, v)
				}
			}
			for _, f := range c.unknownFloats {
				if v, ok := got.Float(f); ok {
					t.Errorf("%s = %v, want unknown", f, v)
				}
			}
		})
	}
}

// Case D6: counters that go back give no rate, and no negative one.
func TestPrefill_RateBetweenTwoSamples(t *testing.T) {
	sample := func(tokens, busy int64) *load.RankLoad {
		r := rank(0, setInt(load.TotalPrefillUncachedTokens, tokens), setInt(load.TotalPrefillBusyUs, busy))
		return &r
	}
	var s rankState
	last := new(load.RankLoad)
	for _, c := range []struct {
		name         string
		tokens, busy int64
		rate         float64
		known        bool
	}{
		{"first sample", 1000, 1_000_000, 0, false},
		{"second sample", 3000, 2_000_000, 2000, true},
		{"busy time did not move", 3000, 2_000_000, 0, false},
		{"moves again", 3500, 2_250_000, 2000, true},
		{"counters went back", 10, 20, 0, false},
		{"after the reset", 1010, 500_020, 2000, true},
	} {
		next := sample(c.tokens, c.busy)
		s.observePrefill(last, next)
		last = next
		if s.prefillKnown != c.known || math.Abs(s.prefillRate-c.rate) > 1e-9 {
			t.Errorf("%s: rate %v (known: %v), want %v (%v)", c.name, s.prefillRate, s.prefillKnown, c.rate, c.known)
		}
	}
}

// A rank keeps its counters by its number, whatever its place among the ranks of the next report.
func TestPrefill_CountersFollowTheRankNumber(t *testing.T) {
	at := func(n int32, tokens, busy int64) load.RankLoad {
		return rank(n, setInt(load.TotalPrefillUncachedTokens, tokens), setInt(load.TotalPrefillBusyUs, busy))
	}
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(5)})
		st := push()
		f.apply(st, report(5, "srcA", 1, at(0, 100, 10), at(1, 1000, 100)))
		f.apply(st, report(5, "srcA", 2, at(1, 2000, 1100), at(2, 9000, 9000)))
		e := f.want("w5", load.Fresh)
		if rate, ok := e.Aggregate.Float(load.PrefillRate); ok {
			t.Errorf("prefill rate %v although rank 2 has one sample only", rate)
		}
		f.apply(st, report(5, "srcA", 3, at(1, 3000, 2100), at(2, 11000, 10000)))
		e = f.want("w5", load.Fresh)
		if rate, ok := e.Aggregate.Float(load.PrefillRate); !ok || rate != 1e6+2e6 {
			t.Errorf("prefill rate %v, %t, want 3e6", rate, ok)
		}
	})
}
