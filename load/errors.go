package load

import "errors"

// Refusal is why a report, a stream or a request was not accepted. The sentinels below are the whole set; they are
// wrapped once, where the offender is known, and found again with errors.Is.
type Refusal struct {
	// Label is the reason in metrics: lower-case words with underscores, from a fixed set (rule LIFE4).
	Label string
	// Of is what can be refused for it.
	Of Refused

	text string
}

// Refused is what a refusal is about.
type Refused uint8

const (
	// OfReport: a report, and with it, unless the report's values are the reason, its stream.
	OfReport Refused = iota
	// OfStream: a report stream, whatever it carries.
	OfStream
	// OfRequest: a watcher, or a request that changes who exists.
	OfRequest
)

func (r *Refusal) Error() string { return r.text }

// RefusalLabel returns the label of the refusal in err's chain, or "other".
func RefusalLabel(err error) string {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Label
	}
	return "other"
}

// Who: the stream ends; the engine must change or register anew.
var (
	// ErrUnknownWorker: no registered worker has the claimed origin (rule ID1).
	ErrUnknownWorker = refusal("unknown_worker", "no worker is registered at this address: register it at the monitor first")
	// ErrOriginConflict: two registered workers have this origin, so neither is fed (rule ID3).
	ErrOriginConflict = refusal("origin_conflict", "more than one worker is registered at this address: remove all but one")
	// ErrRoleMismatch: the reported worker type is not the registered role, or is unspecified (rule ID2).
	ErrRoleMismatch = refusal("role_mismatch", "worker type does not match the registered role")
	// ErrModelMismatch: both sides name a model and the registered ones do not contain the reported one (rule ID2).
	ErrModelMismatch = refusal("model_mismatch", "model is not one of the registered models")
	// ErrIdentityChanged: worker, type or source instance changed within one stream (rule ID2).
	ErrIdentityChanged = refusal("identity_changed", "worker, type or source instance changed within the stream: open a new stream")
	// ErrSourceInstance: the source instance is empty or longer than 256 bytes.
	ErrSourceInstance = refusal("source_instance", "source_instance_id must have 1 to 256 bytes")
	// ErrRetiredSource: a newer source instance has replaced this one (rule ID4).
	ErrRetiredSource = refusal("retired_source", "this source instance was replaced by a newer one: restart the engine if it is the right one")
	// ErrWrongTransport: the worker's configured transport is another one (rule ID6).
	ErrWrongTransport = refusal("wrong_transport", "this worker is fed over another transport")
)

// Superseded: the stream ends because a newer one took over.
var (
	// ErrSourceSuperseded: a new source instance took over (rule ID4).
	ErrSourceSuperseded = refusal("source_superseded", "a newer source instance of this worker took over")
	// ErrStreamSuperseded: a second stream of the same source instance took over (rule ID5).
	ErrStreamSuperseded = refusal("stream_superseded", "a newer stream of this source instance took over")
)

// Gone, not yet, or too much.
var (
	// ErrWorkerRemoved: registration removed the worker, or changed what it is (rule ID7).
	ErrWorkerRemoved = refusal("worker_removed", "the worker was removed from the monitor")
	// ErrNotReady: the first discovery pass has not ended, so nobody is known yet.
	ErrNotReady = refusal("not_ready", "the monitor is still discovering workers: try again")
	// ErrShuttingDown: the monitor is ending.
	ErrShuttingDown = refusalOf(OfStream, "shutting_down", "the monitor is shutting down")
	// ErrTooManyStreams: the bound on report streams is reached (rule LIFE2).
	ErrTooManyStreams = refusalOf(OfStream, "too_many_streams", "too many report streams")
	// ErrTooManyWatchers: the bound on watchers is reached (rule LIFE2).
	ErrTooManyWatchers = refusalOf(OfRequest, "too_many_watchers", "too many watchers")
	// ErrWatcherStuck: a watcher took nothing for a bounded time (rule W3).
	ErrWatcherStuck = refusalOf(OfRequest, "watcher_stuck", "the watcher took nothing for too long: read faster or ask for less")
	// ErrTooManyWorkers: the bound on registered workers is reached (rule LIFE2).
	ErrTooManyWorkers = refusalOf(OfRequest, "too_many_workers", "too many workers")
)

// Registration: a request to change who exists is refused and changes nothing.
var (
	// ErrWorkerSpec: a field of the worker is not valid; the wrapping text names field and value.
	ErrWorkerSpec = refusalOf(OfRequest, "worker_spec", "worker is not valid")
	// ErrConfigured: the id or the origin belongs to a worker of the configuration.
	ErrConfigured = refusalOf(OfRequest, "configured", "the worker comes from the configuration: change it there")
)

// Values: the report is refused whole and counted, the stream and the state before it stay.
var (
	// ErrSequenceOld: equal to or lower than the last accepted one (rule SEQ1).
	ErrSequenceOld = refusal("sequence_old", "sequence is not above the last accepted one")
	// ErrSequenceRange: 0 or above 2^63-1 (rule SEQ1).
	ErrSequenceRange = refusal("sequence_range", "sequence must be 1 to 2^63-1")
	// ErrSequenceJump: more than 2^32 above the last accepted one (rule SEQ1).
	ErrSequenceJump = refusal("sequence_jump", "sequence jumped by more than 2^32")
	// ErrPublisherConflict: two publishers share one socket, and another one is kept (rule SEQ2).
	ErrPublisherConflict = refusal("publisher_conflict", "another publisher feeds this rank: give each rank a publisher of its own")
	// ErrStatus: the status is unspecified or unknown.
	ErrStatus = refusal("status", "status must be healthy, stale or unreachable")
	// ErrNoRanks: a report that is not unreachable carries no rank.
	ErrNoRanks = refusal("no_ranks", "report carries no rank")
	// ErrTooManyRanks: more ranks than the bound (rule LIFE2).
	ErrTooManyRanks = refusal("too_many_ranks", "report carries too many ranks")
	// ErrRankRange: dp_rank is negative or beyond the bound (rule VAL2).
	ErrRankRange = refusal("rank_range", "dp_rank is out of range")
	// ErrDuplicateRank: two entries have one dp_rank (rule VAL2).
	ErrDuplicateRank = refusal("duplicate_rank", "dp_rank appears twice")
	// ErrNegative: a counter or throughput is negative (rule VAL2).
	ErrNegative = refusal("negative", "value must not be negative")
	// ErrNotFinite: a value is NaN or infinite (rule VAL2).
	ErrNotFinite = refusal("not_finite", "value must be a finite number")
)

// refusals lists every sentinel, so that metrics can name each reason before it first happens.
var refusals []*Refusal

func refusal(label, text string) *Refusal { return refusalOf(OfReport, label, text) }

func refusalOf(of Refused, label, text string) *Refusal {
	r := &Refusal{Label: label, Of: of, text: text}
	refusals = append(refusals, r)
	return r
}

// Refusals returns every reason there is, in the order of this file.
func Refusals() []*Refusal { return refusals }
