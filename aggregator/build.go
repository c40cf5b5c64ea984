package aggregator

import (
	"slices"

	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/validator"
)

// buildLocked makes the immutable entry of w as of now, for the snapshot of the given version.
func (a *Aggregator) buildLocked(w *worker, version uint64, now load.Instant) *load.Entry {
	if w.shared {
		w.ranks = slices.Clone(w.ranks)
	}
	var reasons []string // nil where all ranks are fresh
	reported := uint32(0)
	var anomalies load.Anomalies
	if w.conflict {
		anomalies |= load.SourceConflict
	}
	for i := range w.ranks {
		r, s := &w.ranks[i], &w.state[i]
		r.Received = s.Received
		var reason string
		r.Freshness, reason = validator.RankFreshness(s.RankState, now, w.window)
		// Whatever made this publication, the deadline may have passed since anybody looked: the next report must know.
		s.expired = s.Received != 0 && now >= s.Deadline(w.window)
		if r.Freshness != load.Fresh {
			if w.sockets != nil && w.sockets.ranks[i].note != "" {
				reason += "; " + w.sockets.ranks[i].note
			}
			if reasons == nil {
				reasons = make([]string, len(w.ranks))
			}
			reasons[i] = reason
		}
		if s.Received != 0 {
			reported++
		}
		if validator.OverCapacity(&r.Load) {
			anomalies |= load.OverCapacity
		}
	}
	ranks := w.ranks
	if w.spec.ExpectedRanks > len(ranks) && len(ranks) > 0 {
		ranks, reasons = withMissing(ranks, reasons, w.spec.ExpectedRanks)
	}
	w.shared = len(ranks) == len(w.ranks)

	if w.described {
		w.describedVersion, w.described = version, false
	}
	// In one piece, because an entry seldom outlives its first content by long.
	built := &struct {
		status load.WorkerStatus
		entry  load.Entry
	}{
		status: load.WorkerStatus{
			Worker:           w.spec,
			Handle:           w.handle,
			Anomalies:        anomalies,
			SourceInstance:   w.source,
			Sequence:         w.sequence,
			Restarts:         w.restarts,
			LastError:        w.lastError,
			Window:           w.window,
			Ranks:            ranks,
			RankReasons:      reasons,
			ChangedVersion:   version,
			DescribedVersion: w.describedVersion,
		},
	}
	st, e := &built.status, &built.entry
	st.Freshness, st.Reason = validator.WorkerFreshness(w.spec.ExpectedRanks, ranks, reasons, w.unreachable)
	w.freshness = st.Freshness
	st.Reason = a.reasonLocked(w, st)
	if validator.Present(w.spec.ExpectedRanks, ranks) {
		st.Aggregate = aggregate(ranks, w.state)
	} else {
		st.Aggregate.RankCount = reported
	}
	e.WorkerStatus, e.NewestSequence, e.ReportTimeUnixMs = st, w.sequence, w.reportTime
	return e
}

// withMissing adds the ranks that are expected and never reported, where the reported numbers show how they are counted:
// only numbers below the expected count say that they start at 0.
func withMissing(ranks []load.Rank, reasons []string, expected int) ([]load.Rank, []string) {
	if int(ranks[len(ranks)-1].Load.DPRank) >= expected {
		return ranks, reasons
	}
	all, why := make([]load.Rank, expected), make([]string, expected)
	for i := range all {
		all[i] = load.Rank{Load: load.RankLoad{DPRank: int32(i)}, Freshness: load.Missing, SampleAgeMs: -1}
		why[i] = validator.ReasonNeverSeen
	}
	for i := range ranks {
		n := ranks[i].Load.DPRank
		all[n], why[n] = ranks[i], ""
		if reasons != nil {
			why[n] = reasons[i]
		}
	}
	return all, why
}

// reasonLocked completes the reason that follows from the ranks by what else is wrong.
func (a *Aggregator) reasonLocked(w *worker, st *load.WorkerStatus) string {
	reason := st.Reason
	if w.unreachable && w.lastError != "" {
		reason += ": " + w.lastError
	}
	if w.spec.Conflict != "" {
		reason = w.spec.Conflict
	} else if w.note != "" && st.Freshness != load.Fresh {
		reason += "; " + w.note
	}
	if w.turnedAway != "" && w.spec.Conflict == "" && st.Freshness != load.Fresh {
		reason += "; a report stream was refused: " + w.turnedAway
	}
	if w.refused != "" {
		if reason != "" {
			reason += "; "
		}
		reason += "newest report refused: " + w.refused
	}
	return reason
}

// markLocked makes the entry of a worker whose content did not change: shared content and a newer mark (rule FR6).
func (a *Aggregator) markLocked(w *worker, version uint64) *load.Entry {
	e := *w.entry
	e.RefreshedVersion = version
	e.Refreshed = 0
	for i := range w.state {
		// Content that did not change has the ranks fresh that it shows as fresh.
		if r := w.state[i].Received; w.ranks[i].Freshness == load.Fresh && (e.Refreshed == 0 || r < e.Refreshed) {
			e.Refreshed = r
		}
	}
	e.NewestSequence, e.ReportTimeUnixMs = w.sequence, w.reportTime
	return &e
}
