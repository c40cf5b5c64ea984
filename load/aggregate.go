package load

// IntFigure names one whole-number figure over the ranks of a worker.
type IntFigure uint8

// FloatFigure names one fractional figure over the ranks of a worker.
type FloatFigure uint8

// The figures of a worker, in the order in which every encoder writes them. Units and whether each is a sum, a mean, a
// ratio or a peak stand in proto/loadmonitor/v1/snapshot.proto under the same names (rule VAL4).
const (
	SumRunningReqs IntFigure = iota
	SumWaitingReqs
	SumWaitingUncachedTokens
	SumUsedTokens
	SumTotalTokens
	SumMaxTotalTokens
	SumMaxRunningRequests
	TotalRequests
	FreeTokens
	AvailableSlots
	MaxRankWaitingReqs
	NumIntFigures // how many there are
)

const (
	SumGenThroughput FloatFigure = iota
	QueuePressure
	RequestUtilization
	WeightedTokenUsage
	MaxRankTokenUsage
	PrefillRate
	PrefillQueueMs
	NumFloatFigures // how many there are
)

var intFigureNames = [NumIntFigures]string{
	"num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens", "num_used_tokens", "num_total_tokens",
	"max_total_num_tokens", "max_running_requests", "total_requests", "free_tokens", "available_slots",
	"max_rank_waiting_reqs",
}

var floatFigureNames = [NumFloatFigures]string{
	"gen_throughput", "queue_pressure", "request_utilization", "weighted_token_usage", "max_rank_token_usage",
	"prefill_rate", "prefill_queue_ms",
}

// String returns the field's own name, as in proto and JSON.
func (f IntFigure) String() string { return intFigureNames[f] }

// String returns the field's own name, as in proto and JSON.
func (f FloatFigure) String() string { return floatFigureNames[f] }

// Aggregate holds the figures over the ranks of one worker. A figure is unknown when an input was never told or a
// denominator is zero (rule VAL4). Values compare with ==. The zero value knows nothing.
type Aggregate struct {
	RankCount uint32 // ranks that reported

	known  uint32
	ints   [NumIntFigures]int64
	floats [NumFloatFigures]float64
}

// Int returns a figure and whether it is known; (0, false) when it is not.
func (a *Aggregate) Int(f IntFigure) (int64, bool) { return a.ints[f], a.known&(1<<f) != 0 }

// Float returns a figure and whether it is known; (0, false) when it is not.
func (a *Aggregate) Float(f FloatFigure) (float64, bool) {
	return a.floats[f], a.known&(1<<(uint8(NumIntFigures)+uint8(f))) != 0
}

// SetInt makes a figure known.
func (a *Aggregate) SetInt(f IntFigure, v int64) { a.ints[f] = v; a.known |= 1 << f }

// SetFloat makes a figure known.
func (a *Aggregate) SetFloat(f FloatFigure, v float64) {
	a.floats[f] = v
	a.known |= 1 << (uint8(NumIntFigures) + uint8(f))
}
