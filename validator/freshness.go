package validator

import (
	"fmt"
	"math"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// SampleAgeMs returns how old a sample was when the engine reported it, by two times of the same engine; never negative,
// and -1 when either time was not told (rules FR1 and VAL5). One of more than 24 days is told as that.
func SampleAgeMs(reportTimeUnixMs, snapshotTimeUnixMs int64) int32 {
	if reportTimeUnixMs <= 0 || snapshotTimeUnixMs <= 0 {
		return -1
	}
	return int32(min(max(0, reportTimeUnixMs-snapshotTimeUnixMs), math.MaxInt32))
}

// RankState is what decides over one rank's freshness.
type RankState struct {
	Received    load.Instant // receipt of its newest report; 0: never
	SampleStale bool         // the newest report's sample was too old by the engine's own clock
	Starting    bool         // see Starting
	Unreachable bool         // the engine said after that report that it cannot be sampled
}

// Reasons why a rank is not fresh. They carry no running figures, so that waiting alone does not change a worker.
const (
	ReasonNoReport    = "no report within the freshness window"
	ReasonSample      = "the engine reports an old sample"
	ReasonStarting    = "the engine reports no capacity: still starting"
	ReasonUnreachable = "the engine cannot be sampled"
	ReasonNeverSeen   = "never reported"
)

// Deadline returns when the rank goes stale if no report arrives (rule FR4).
func (s RankState) Deadline(window time.Duration) load.Instant {
	return s.Received + load.Instant(window.Microseconds())
}

// RankFreshness judges one rank at a moment, by the monitor's monotonic clock (rules FR1 and FR5).
func RankFreshness(s RankState, now load.Instant, window time.Duration) (load.Freshness, string) {
	switch {
	case s.Received == 0:
		return load.Missing, ReasonNeverSeen
	case s.Unreachable:
		return load.Stale, ReasonUnreachable
	case now >= s.Deadline(window):
		return load.Stale, ReasonNoReport
	case s.SampleStale:
		return load.Stale, ReasonSample
	case s.Starting:
		return load.Stale, ReasonStarting
	}
	return load.Fresh, ""
}

// Present reports whether the ranks that reported are the ranks expected; expected 0 means not known: any set with a
// rank is taken at face value (rule FR3).
func Present(expected int, ranks []load.Rank) bool {
	reported := 0
	for i := range ranks {
		if ranks[i].Freshness != load.Missing {
			reported++
		}
	}
	return reported > 0 && reported == len(ranks) && (expected == 0 || reported == expected)
}

// WorkerFreshness judges a worker by its ranks, in the order of rule FR2. unreachable says that the engine's newest
// report says so; reasons belong to the ranks, and are nil where all are fresh. The reason is empty for a fresh worker.
func WorkerFreshness(expected int, ranks []load.Rank, reasons []string, unreachable bool) (load.Freshness, string) {
	reported, stale, reason := 0, 0, ""
	for i := range ranks {
		if ranks[i].Freshness != load.Missing {
			reported++
		}
		if ranks[i].Freshness == load.Stale {
			if stale == 0 {
				reason = reasons[i]
			}
			stale++
		}
	}
	switch {
	case unreachable:
		return load.Unreachable, ReasonUnreachable
	case reported == 0:
		return load.Missing, ReasonNeverSeen
	case !Present(expected, ranks):
		if expected == 0 {
			expected = len(ranks)
		}
		return load.Incomplete, fmt.Sprintf("%d ranks reported, %d expected", reported, expected)
	case stale > 0:
		if stale < len(ranks) {
			reason = fmt.Sprintf("%d of %d ranks stale: %s", stale, len(ranks), reason)
		}
		return load.Stale, reason
	}
	return load.Fresh, ""
}

// SampleStale reports which ranks of a report have a sample that is too old by the engine's own clock: those older than
// the window, and, when the engine calls the report stale without any such rank, all of them, because it does not say
// which one it means.
func SampleStale(status load.Status, agesMs []int32, window time.Duration, stale []bool) {
	any := false
	for i, age := range agesMs {
		stale[i] = int64(age) > window.Milliseconds()
		any = any || stale[i]
	}
	if status == load.StatusStale && !any {
		for i := range stale {
			stale[i] = true
		}
	}
}
