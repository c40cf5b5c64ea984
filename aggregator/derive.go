package aggregator

import (
	"math"

	"github.com/loadmonitor/loadmonitor/load"
)

// observePrefill follows the rank's two prefill counters from the last sample, which is the load that is kept of the rank, to
// the next one, and reports whether the rate changed. The rate is unknown until two samples of one source, after a reset, or
// when the busy time did not move.
func (s *rankState) observePrefill(last, next *load.RankLoad) bool {
	rate, known := s.prefillRate, s.prefillKnown
	tokens, ok1 := next.Int(load.TotalPrefillUncachedTokens)
	busy, ok2 := next.Int(load.TotalPrefillBusyUs)
	if !ok1 || !ok2 {
		// Without counters the engine's own rate stands; 0 gives no estimate.
		s.prefillRate, s.prefillKnown = next.Float(load.PrefillThroughput)
		s.prefillCounted = false
		return s.prefillRate != rate || s.prefillKnown != known
	}
	lastTokens, _ := last.Int(load.TotalPrefillUncachedTokens)
	lastBusy, _ := last.Int(load.TotalPrefillBusyUs)
	s.prefillRate, s.prefillKnown = 0, false
	if s.prefillCounted && tokens >= lastTokens && busy > lastBusy {
		s.prefillRate, s.prefillKnown = 1e6*float64(tokens-lastTokens)/float64(busy-lastBusy), true
	}
	s.prefillCounted = true
	return s.prefillRate != rate || s.prefillKnown != known
}

// forgetPrefill lets the counters begin anew: those of another source do not go on.
func (s *rankState) forgetPrefill() {
	s.prefillRate, s.prefillKnown, s.prefillCounted = 0, false, false
}

// sums are the figures that add one signal over the ranks.
var sums = []struct {
	figure load.IntFigure
	signal load.IntSignal
}{
	{load.SumRunningReqs, load.NumRunningReqs},
	{load.SumWaitingReqs, load.NumWaitingReqs},
	{load.SumWaitingUncachedTokens, load.NumWaitingUncachedTokens},
	{load.SumUsedTokens, load.NumUsedTokens},
	{load.SumTotalTokens, load.NumTotalTokens},
	{load.SumMaxTotalTokens, load.MaxTotalNumTokens},
	{load.SumMaxRunningRequests, load.MaxRunningRequests},
}

// aggregate derives the figures of a worker from ranks that are all present; state[i] belongs to ranks[i]. An input
// that some rank did not tell makes every figure that needs it unknown (rule VAL4).
func aggregate(ranks []load.Rank, state []rankState) load.Aggregate {
	a := load.Aggregate{RankCount: uint32(len(ranks))}
	for _, s := range sums {
		if total, ok := sumInt(ranks, s.signal); ok {
			a.SetInt(s.figure, total)
		}
	}
	if total, ok := sumFloat(ranks, load.GenThroughput); ok {
		a.SetFloat(load.SumGenThroughput, total)
	}
	running, hasRunning := a.Int(load.SumRunningReqs)
	waiting, hasWaiting := a.Int(load.SumWaitingReqs)
	if hasRunning && hasWaiting {
		a.SetInt(load.TotalRequests, addSaturating(running, waiting))
	}
	if used, ok := a.Int(load.SumUsedTokens); ok {
		if capacity, ok := a.Int(load.SumMaxTotalTokens); ok {
			a.SetInt(load.FreeTokens, max(0, capacity-used))
		}
	}
	if slots, ok := a.Int(load.SumMaxRunningRequests); ok && hasRunning {
		a.SetInt(load.AvailableSlots, max(0, slots-running))
		if slots > 0 {
			a.SetFloat(load.RequestUtilization, float64(running)/float64(slots))
		}
	}
	uncached, hasUncached := a.Int(load.SumWaitingUncachedTokens)
	if rate, ok := a.Float(load.SumGenThroughput); ok && hasUncached && rate > 0 {
		setFinite(&a, load.QueuePressure, float64(uncached)/rate)
	}
	usage(&a, ranks)
	if v, ok := peak(ranks, load.NumWaitingReqs); ok {
		a.SetInt(load.MaxRankWaitingReqs, v)
	}
	if rate, ok := prefillRate(state); ok {
		a.SetFloat(load.PrefillRate, rate)
		if hasUncached && rate > 0 {
			setFinite(&a, load.PrefillQueueMs, 1000*float64(uncached)/rate)
		}
	}
	return a
}

// usage sets the weighted mean and the peak of token_usage.
func usage(a *load.Aggregate, ranks []load.Rank) {
	var weighted, weight, highest float64
	for i := range ranks {
		u, ok := ranks[i].Load.Float(load.TokenUsage)
		if !ok {
			return
		}
		capacity, _ := ranks[i].Load.Int(load.MaxTotalNumTokens)
		weighted += u * float64(capacity)
		weight += float64(capacity)
		highest = max(highest, u)
	}
	a.SetFloat(load.MaxRankTokenUsage, highest)
	if _, ok := a.Int(load.SumMaxTotalTokens); ok && weight > 0 {
		setFinite(a, load.WeightedTokenUsage, weighted/weight)
	}
}

func prefillRate(state []rankState) (float64, bool) {
	var rate float64
	for i := range state {
		if !state[i].prefillKnown {
			return 0, false
		}
		rate += state[i].prefillRate
	}
	return rate, load.Finite(rate)
}

func sumInt(ranks []load.Rank, s load.IntSignal) (int64, bool) {
	var total int64
	for i := range ranks {
		v, ok := ranks[i].Load.Int(s)
		if !ok {
			return 0, false
		}
		total = addSaturating(total, v)
	}
	return total, true
}

func sumFloat(ranks []load.Rank, s load.FloatSignal) (float64, bool) {
	var total float64
	for i := range ranks {
		v, ok := ranks[i].Load.Float(s)
		if !ok {
			return 0, false
		}
		total += v
	}
	return total, load.Finite(total)
}

func peak(ranks []load.Rank, s load.IntSignal) (int64, bool) {
	var highest int64
	for i := range ranks {
		v, ok := ranks[i].Load.Int(s)
		if !ok {
			return 0, false
		}
		highest = max(highest, v)
	}
	return highest, true
}

// addSaturating adds two numbers that are not negative.
func addSaturating(x, y int64) int64 {
	if x > math.MaxInt64-y {
		return math.MaxInt64
	}
	return x + y
}

// setFinite leaves a figure unknown that overflowed.
func setFinite(a *load.Aggregate, f load.FloatFigure, v float64) {
	if load.Finite(v) {
		a.SetFloat(f, v)
	}
}
