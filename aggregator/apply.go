package aggregator

import (
	"fmt"
	"slices"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/validator"
)

// Apply takes one report of a stream, or refuses it whole with an error that wraps a sentinel of package load and names
// the offender. The first accepted report binds the stream to its worker, and may take over from an older stream or
// source instance (rules ID2 to ID5). After a refusal of values the stream may go on (rules SEQ1, VAL2); after any other
// the caller must end it. Apply may reorder and normalise r.Ranks and keeps nothing of them. Nothing is published before
// the publisher's next turn.
func (a *Aggregator) Apply(st *load.Stream, r *load.Report) error {
	now := a.Now()
	shape := validator.Shape(r, a.limits)

	a.mu.Lock()
	err := a.applyLocked(st, r, now, shape)
	doubts := a.takeDoubtsLocked()
	a.mu.Unlock()

	a.tellDoubts(doubts)

	if err != nil {
		a.counts.refuse(err)
		return err
	}
	a.counts.accepted.Add(1)
	return nil
}

func (a *Aggregator) applyLocked(st *load.Stream, r *load.Report, now load.Instant, shape error) error {
	if err := st.Err(); err != nil {
		return err
	}
	b := a.streams[st]
	var w *worker
	if b != nil {
		w = b.worker
		if err := a.checkLocked(b, r); err != nil {
			return err
		}
	} else {
		var err error
		if w, err = a.findLocked(st, r); err != nil {
			return err
		}
	}
	if shape != nil {
		a.refuseLocked(w, shape)
		return fmt.Errorf("worker %s: %w", w.spec.ID, shape)
	}
	last := w.sequence
	if r.SourceInstance != w.source {
		last = 0 // a new source instance counts anew (rule ID4)
	}
	if err := validator.Sequence(last, r.Sequence); err != nil {
		return fmt.Errorf("worker %s: %w", w.spec.ID, err)
	}
	newSource := r.SourceInstance != w.source
	if b == nil {
		a.bindLocked(st, w, r)
	}
	if n := w.spec.ExpectedRanks; n != 0 && n != len(r.Ranks) && r.Status != load.StatusUnreachable {
		a.doubtLocked(w)
	}
	a.keepLocked(w, r, now, newSource)
	return nil
}

// refuseLocked lets the worker show why its newest report was not taken; the state before stays.
func (a *Aggregator) refuseLocked(w *worker, err error) {
	if text := err.Error(); w.refused != text {
		w.refused = text
		a.markDirtyLocked(w)
	}
}

// keepLocked replaces what is known of w by an admitted report: a push or dial-in report carries the whole set of ranks
// (rule FR3). Values equal to the last ones move a mark only (rule FR6).
func (a *Aggregator) keepLocked(w *worker, r *load.Report, now load.Instant, newSource bool) {
	changed := newSource || w.refused != "" || w.turnedAway != "" || w.lastError != r.LastError ||
		w.unreachable != (r.Status == load.StatusUnreachable)
	w.sequence, w.reportTime = r.Sequence, max(0, r.ReportTimeUnixMs)
	w.lastError, w.refused, w.turnedAway = r.LastError, "", ""
	w.unreachable = r.Status == load.StatusUnreachable
	if w.unreachable {
		for i := range w.state {
			w.state[i].Unreachable = true // the last ranks stay, stale (rule FR2)
		}
	} else if a.keepRanksLocked(w, r, now) {
		changed = true
	}
	if changed {
		a.markDirtyLocked(w)
	} else {
		a.markRefreshedLocked(w)
	}
}

// keepRanksLocked takes the ranks of a report and reports whether any of their content differs from the last.
func (a *Aggregator) keepRanksLocked(w *worker, r *load.Report, now load.Instant) bool {
	sortRanks(r.Ranks)
	ages := a.scratch.judge(r, w.window)
	changed := !sameRanks(w.ranks, r.Ranks)
	if changed {
		w.regroupLocked(r.Ranks)
	}
	if a.compareLocked(w, r.Ranks, now) {
		changed = true
	}
	if changed {
		w.replaceLocked(r.Ranks, ages)
	}
	a.queueLocked(w, now+micros(w.window))
	return changed
}

// sortRanks sorts ranks by number.
func sortRanks(ranks []load.RankLoad) {
	for i := 1; i < len(ranks); i++ {
		if ranks[i-1].DPRank > ranks[i].DPRank {
			slices.SortFunc(ranks, func(x, y load.RankLoad) int { return int(x.DPRank) - int(y.DPRank) })
			return
		}
	}
}

// compareLocked brings the state of every rank up to date, and reports whether anything differs from what was published.
// The ranks are those of w.ranks, and what the scratch holds is theirs.
func (a *Aggregator) compareLocked(w *worker, ranks []load.RankLoad, now load.Instant) (changed bool) {
	over := false
	for i := range ranks {
		in, s := &ranks[i], &w.state[i]
		age, stale := a.scratch.ages[i], a.scratch.stale[i]
		s.prefillSeen = validator.Normalise(in, s.prefillSeen)
		starting := validator.Starting(in)
		over = over || validator.OverCapacity(in)
		// A mark says nothing of the sample, so one that grows old under unchanged values is news.
		if !changed && aged(w.ranks[i].SampleAgeMs, age, w.window) {
			changed = true
		}
		changed = changed || s.expired || s.Unreachable || starting != s.Starting || stale != s.SampleStale ||
			!w.ranks[i].Load.SameLoad(in)
		if s.observePrefill(&w.ranks[i].Load, in) {
			changed = true
		}
		s.RankState = validator.RankState{Received: now, SampleStale: stale, Starting: starting}
		s.expired = false
	}
	if over {
		a.counts.overCapacity.Add(1)
	}
	return changed
}

// replaceLocked keeps new values of the ranks of w; a snapshot that shows the last ones does not change.
func (w *worker) replaceLocked(ranks []load.RankLoad, ages []int32) {
	if w.shared {
		w.ranks, w.shared = make([]load.Rank, len(ranks)), false
	}
	for i := range ranks {
		r := &w.ranks[i]
		r.Load, r.SampleAgeMs = ranks[i], ages[i] // the rest is the publisher's
	}
}

// aged reports whether a sample age differs from the published one by more than a quarter of the window, or is known
// where the other is not.
func aged(published, now int32, window time.Duration) bool {
	diff := int64(now) - int64(published)
	return (published < 0) != (now < 0) || max(diff, -diff) > window.Milliseconds()/4
}

func sameRanks(have []load.Rank, got []load.RankLoad) bool {
	if len(have) != len(got) {
		return false
	}
	for i := range have {
		if have[i].Load.DPRank != got[i].DPRank {
			return false
		}
	}
	return true
}

// regroupLocked gives w a new set of ranks; what belongs to a number that stays is carried over.
func (w *worker) regroupLocked(ranks []load.RankLoad) {
	kept := make([]load.Rank, len(ranks))
	state := make([]rankState, len(ranks))
	var dialled []dialledRank
	if w.spec.Transport == load.TransportZMQ {
		dialled = make([]dialledRank, len(ranks))
		if w.sockets == nil {
			w.sockets = &sockets{streams: make(map[*load.Stream]struct{}, len(ranks))}
		}
	}
	for i := range ranks {
		j, found := slices.BinarySearchFunc(w.ranks, ranks[i].DPRank, byNumber)
		if !found {
			continue
		}
		kept[i], state[i] = w.ranks[j], w.state[j]
		if dialled != nil {
			dialled[i] = w.sockets.ranks[j]
		}
	}
	w.ranks, w.state, w.shared = kept, state, false
	if dialled != nil {
		w.sockets.ranks = dialled
	}
}

// scratch is working memory of keepRanksLocked, so that taking a report allocates nothing.
type scratch struct {
	ages  []int32
	stale []bool
}

// judge tells the age of each rank's sample, milliseconds, and whether it is too old.
func (s *scratch) judge(r *load.Report, window time.Duration) (ages []int32) {
	n := len(r.Ranks)
	if cap(s.ages) < n {
		s.ages, s.stale = make([]int32, n), make([]bool, n)
	}
	s.ages, s.stale = s.ages[:n], s.stale[:n]
	for i := range r.Ranks {
		s.ages[i] = validator.SampleAgeMs(r.ReportTimeUnixMs, r.Ranks[i].SnapshotTimeUnixMs)
	}
	validator.SampleStale(r.Status, s.ages, window, s.stale)
	return s.ages
}
