package load

import "math"

// IntSignal names one whole-number signal of a rank.
type IntSignal uint8

// FloatSignal names one fractional signal of a rank.
type FloatSignal uint8

// The signals an engine may tell of a rank, in the order in which every encoder writes them. Meaning and units stand in
// proto/loadmonitor/v1/snapshot.proto under the same names.
const (
	NumRunningReqs IntSignal = iota
	NumWaitingReqs
	NumWaitingUncachedTokens
	NumUsedTokens
	NumTotalTokens
	MaxTotalNumTokens
	MaxRunningRequests
	TotalPrefillUncachedTokens
	TotalPrefillBusyUs
	NumIntSignals // how many there are
)

const (
	TokenUsage FloatSignal = iota
	GenThroughput
	CacheHitRate
	Utilization
	PrefillThroughput
	NumFloatSignals // how many there are
)

var intSignalNames = [NumIntSignals]string{
	"num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens", "num_used_tokens", "num_total_tokens",
	"max_total_num_tokens", "max_running_requests", "total_prefill_uncached_tokens", "total_prefill_busy_us",
}

var floatSignalNames = [NumFloatSignals]string{
	"token_usage", "gen_throughput", "cache_hit_rate", "utilization", "prefill_throughput",
}

// String returns the field's own name, as in proto and JSON.
func (s IntSignal) String() string { return intSignalNames[s] }

// String returns the field's own name, as in proto and JSON.
func (s FloatSignal) String() string { return floatSignalNames[s] }

// RankLoad is what an engine told of one DP rank in one sample. A signal is read together with whether it was told at
// all: absent is not zero (rule VAL1). Values compare with ==. The zero value is rank 0 with nothing told.
type RankLoad struct {
	// DPRank is the engine's own number of the rank: a key, not an index.
	DPRank int32

	known uint32 // bit i: ints[i]; bit NumIntSignals+j: floats[j]. A value that is not known is zero.

	// SnapshotTimeUnixMs is when the engine took the sample, by its own clock; 0: not told.
	SnapshotTimeUnixMs int64

	ints   [NumIntSignals]int64
	floats [NumFloatSignals]float64
}

// Int returns a signal and whether it was told; (0, false) when it was not.
func (r *RankLoad) Int(s IntSignal) (int64, bool) { return r.ints[s], r.known&(1<<s) != 0 }

// Float returns a signal and whether it was told; (0, false) when it was not.
func (r *RankLoad) Float(s FloatSignal) (float64, bool) {
	return r.floats[s], r.known&(1<<(uint8(NumIntSignals)+uint8(s))) != 0
}

// SetInt tells a signal.
func (r *RankLoad) SetInt(s IntSignal, v int64) { r.ints[s] = v; r.known |= 1 << s }

// SetFloat tells a signal.
func (r *RankLoad) SetFloat(s FloatSignal, v float64) {
	r.floats[s] = v
	r.known |= 1 << (uint8(NumIntSignals) + uint8(s))
}

// UnsetInt makes a signal unknown.
func (r *RankLoad) UnsetInt(s IntSignal) { r.ints[s] = 0; r.known &^= 1 << s }

// UnsetFloat makes a signal unknown.
func (r *RankLoad) UnsetFloat(s FloatSignal) {
	r.floats[s] = 0
	r.known &^= 1 << (uint8(NumIntSignals) + uint8(s))
}

// SameLoad reports whether both say the same of the same rank, whenever they were sampled. Values must be finite.
func (r *RankLoad) SameLoad(o *RankLoad) bool {
	return r.DPRank == o.DPRank && r.known == o.known && r.ints == o.ints && r.floats == o.floats
}

// Finite reports whether f is a number that may be published: not NaN and not infinite.
func Finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// Report is one message of an engine about the ranks of one worker. A call that takes one
// may reorder Ranks until it returns and keeps nothing of them.
type Report struct {
	SourceInstance   string // one life of the reporter
	Sequence         uint64
	ReportTimeUnixMs int64 // by the engine's clock; 0: not told
	Status           Status
	LastError        string
	Claim            Claim // who the payload says it is about
	Ranks            []RankLoad
}

// Claim is who a report says it is about. On push it is compared with registration (rule ID2); elsewhere the endpoint
// that we dialled is the identity.
type Claim struct {
	Address string // as sent, not normalised
	Role    Role
	Model   string // empty: names none
}

// RankReport is one message about one rank from a socket that we dialled: the endpoint is the identity, and the message
// replaces what is known of that rank alone.
type RankReport struct {
	WorkerID string
	// Sequence is the publisher's counter of this socket; it starts at 0 with each life of the publisher (rule SEQ2).
	Sequence int64
	// Load holds the rank's number as dialled, whatever the payload says of itself.
	Load RankLoad
	// Conflated is how many messages of this socket arrived since its previous accepted report and were not handed on, mostly
	// because a newer one was there already, or were refused: they are in a gap of the sequence without having been missed.
	Conflated uint64
	// CapacityOptional says that this form of payload may leave out a capacity without meaning "still starting" (rule FR5).
	CapacityOptional bool
}
