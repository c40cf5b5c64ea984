package server

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/loadmonitor/loadmonitor/load"
)

// stays marks a refusal of values: the report is dropped, the stream goes on.
const stays = codes.OK

// streamCodes says how a report stream ends for each reason there is. An engine reads the code so: UNAVAILABLE,
// DEADLINE_EXCEEDED and RESOURCE_EXHAUSTED make it reconnect by itself; INVALID_ARGUMENT makes it wait for the next
// renewal of its registration; every other code, OK included, ends its reporting until it is registered anew.
var streamCodes = map[error]codes.Code{
	// The engine claims to be somebody that it must not be: only registration can change that.
	load.ErrUnknownWorker:   codes.InvalidArgument,
	load.ErrOriginConflict:  codes.InvalidArgument,
	load.ErrRoleMismatch:    codes.InvalidArgument,
	load.ErrModelMismatch:   codes.InvalidArgument,
	load.ErrIdentityChanged: codes.InvalidArgument,
	load.ErrSourceInstance:  codes.InvalidArgument,
	load.ErrRetiredSource:   codes.InvalidArgument,
	load.ErrWrongTransport:  codes.InvalidArgument,
	errUndecodable:          codes.InvalidArgument,

	// Another stream reports for this worker now: this one must not come back by itself.
	load.ErrSourceSuperseded: codes.Aborted,
	load.ErrStreamSuperseded: codes.Aborted,
	load.ErrWorkerRemoved:    codes.NotFound,

	// Nothing is wrong with the engine: it may try again soon.
	load.ErrNotReady:     codes.Unavailable,
	load.ErrShuttingDown: codes.Unavailable,
	errHalfClosed:        codes.Unavailable,
	errNoFirstReport:     codes.DeadlineExceeded,
	errDeadline:          codes.DeadlineExceeded,
	errGone:              codes.Canceled,

	// A bound is reached.
	load.ErrTooManyStreams:  codes.ResourceExhausted,
	load.ErrTooManyWatchers: codes.ResourceExhausted,
	load.ErrWatcherStuck:    codes.ResourceExhausted,
	load.ErrTooManyWorkers:  codes.ResourceExhausted,
	errTooLarge:             codes.ResourceExhausted,

	// Requests to the registry; a report stream does not end for these.
	load.ErrWorkerSpec: codes.InvalidArgument,
	load.ErrConfigured: codes.FailedPrecondition,

	load.ErrSequenceOld:   stays,
	load.ErrSequenceRange: stays,
	load.ErrSequenceJump:  stays,
	load.ErrStatus:        stays,
	load.ErrNoRanks:       stays,
	load.ErrTooManyRanks:  stays,
	load.ErrRankRange:     stays,
	load.ErrDuplicateRank: stays,
	load.ErrNegative:      stays,
	load.ErrNotFinite:     stays,

	// Never meets a pushed report: sockets have publishers.
	load.ErrPublisherConflict: stays,
}

// ending is a reason to end a stream that only this package knows.
type ending struct{ label, text string }

func (e *ending) Error() string { return e.text }

var (
	// errUndecodable: the bytes are not a LoadReport.
	errUndecodable = &ending{"undecodable", "message is not a LoadReport"}
	// errHalfClosed: the engine closed its side without cancelling the call. Its lease may still live, so the end is one
	// after which it reconnects; an engine that is done does not listen any more.
	errHalfClosed = &ending{"half_closed", "the stream was closed by the engine while its lease may live: cancel the call to end it"}
	// errNoFirstReport: nothing arrived on a new stream for Options.FirstReportTimeout.
	errNoFirstReport = &ending{"no_first_report", "no report arrived in time on a new stream"}
	// errDeadline: the call has a deadline, of the engine or of something between, and it has passed.
	errDeadline = &ending{"deadline", "the deadline of the call has passed"}
	// errTooLarge: a message is longer than Options.MaxMessageBytes.
	errTooLarge = &ending{"too_large", "message is too large"}
	// errGone: the engine cancelled the call, as it does when its lease ends, or the connection is lost.
	errGone = &ending{"gone", "the engine ended the stream"}
)

// reasonOf returns the label in metrics of the sentinel in err's chain, and the sentinel; ("other", nil) when there is none.
func reasonOf(err error) (label string, reason error) {
	var r *load.Refusal
	if errors.As(err, &r) {
		return r.Label, r
	}
	var e *ending
	if errors.As(err, &e) {
		return e.label, e
	}
	return "other", nil
}

// endsStream reports whether a report that was refused with err ends its stream.
func endsStream(err error) bool { return codeOf(err) != stays }

// codeOf returns the gRPC code for err; INTERNAL for an error that is no refusal.
func codeOf(err error) codes.Code {
	if _, reason := reasonOf(err); reason != nil {
		if c, ok := streamCodes[reason]; ok {
			return c
		}
	}
	return codes.Internal
}

// streamStatus returns the status with which a report stream ends because of err.
func streamStatus(err error) error {
	return status.Error(codeOf(err), statusText(err))
}

// registryStatus returns the status of a refused request to the registry. It differs from streamStatus where a request
// names a worker that is not there: that is an ordinary answer, not a claim of identity.
func registryStatus(err error) error {
	switch {
	case errors.Is(err, load.ErrUnknownWorker), errors.Is(err, load.ErrWorkerRemoved):
		return status.Error(codes.NotFound, statusText(err))
	case errors.Is(err, load.ErrOriginConflict):
		return status.Error(codes.FailedPrecondition, statusText(err))
	}
	return streamStatus(err)
}

// maxStatusBytes keeps a status well under the 8 KiB of metadata that some clients take.
const maxStatusBytes = 1024

func statusText(err error) string {
	return bounded(err.Error(), maxStatusBytes)
}

// tooLong refuses an identity that is longer than its bound: cut, it could be another's.
func tooLong(field string, n, limit int, refusal error) error {
	return fmt.Errorf("%s has %d bytes, at most %d: %w", field, n, limit, refusal)
}

// bounded returns s as valid UTF-8 of at most limit bytes: what is longer is cut between characters, what is not valid
// is left out (rule VAL3). The result shares no memory with a longer s.
func bounded(s string, limit int) string {
	if len(s) > limit {
		s = strings.Clone(s[:limit])
	}
	return strings.ToValidUTF8(s, "")
}
