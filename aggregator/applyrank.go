package aggregator

import (
	"fmt"
	"slices"

	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/validator"
)

// ApplyRank takes one message about one rank from a socket that we dialled, or refuses it with an error that wraps a
// sentinel of package load. The endpoint is the identity, so the first message binds the stream to worker and rank
// without a claim (rule ID2); several streams feed one worker, one for each rank. The newest sequence wins (rule SEQ2).
// After a refusal of values the stream may go on; after any other the caller must end it.
func (a *Aggregator) ApplyRank(st *load.Stream, r *load.RankReport) error {
	now := a.Now()
	shape := validator.RankShape(&r.Load, a.limits)

	a.mu.Lock()
	err := a.applyRankLocked(st, r, now, shape)
	a.mu.Unlock()

	if err != nil {
		a.counts.refuse(err)
		return err
	}
	a.counts.accepted.Add(1)
	return nil
}

func (a *Aggregator) applyRankLocked(st *load.Stream, r *load.RankReport, now load.Instant, shape error) error {
	if err := st.Err(); err != nil {
		return err
	}
	b := a.streams[st]
	bound := b != nil
	if !bound {
		w, err := a.dialledLocked(st, r.WorkerID)
		if err != nil {
			return err
		}
		b = &binding{worker: w}
	}
	w := b.worker
	i, found := slices.BinarySearchFunc(w.ranks, r.Load.DPRank, byNumber)
	if !found {
		return fmt.Errorf("worker %s: rank %d of %d: %w", w.spec.ID, r.Load.DPRank, len(w.ranks), load.ErrRankRange)
	}
	if shape != nil {
		a.refuseLocked(w, shape)
		return fmt.Errorf("worker %s: %w", w.spec.ID, shape)
	}
	d := &w.sockets.ranks[i]
	gap, err := d.socket.Accept(r.Sequence, now)
	if d.socket.Conflict != d.conflict {
		d.conflict = d.socket.Conflict
		w.noteConflict()
		a.markDirtyLocked(w)
	}
	if err != nil {
		return fmt.Errorf("worker %s rank %d: %w", w.spec.ID, r.Load.DPRank, err)
	}
	a.counts.gaps.Add(gap - min(gap, r.Conflated))
	if !bound {
		a.streams[st] = b
		w.sockets.streams[st] = struct{}{}
	}
	a.keepRankLocked(w, i, r, now)
	return nil
}

// dialledLocked returns the worker that a dialled stream feeds.
func (a *Aggregator) dialledLocked(st *load.Stream, id string) (*worker, error) {
	w := a.workerLocked(id)
	switch {
	case w == nil:
		return nil, fmt.Errorf("worker %s: %w", id, load.ErrUnknownWorker)
	case w.spec.Conflict != "":
		return nil, fmt.Errorf("worker %s: %w", id, load.ErrOriginConflict)
	case w.spec.Transport != st.Transport():
		return nil, fmt.Errorf("worker %s: %s instead of %s: %w", id, st.Transport(), w.spec.Transport, load.ErrWrongTransport)
	}
	return w, nil
}

// keepRankLocked replaces what is known of one rank.
func (a *Aggregator) keepRankLocked(w *worker, i int, r *load.RankReport, now load.Instant) {
	in, s, d := &r.Load, &w.state[i], &w.sockets.ranks[i]
	restarted := d.socket.Restarts > w.restarts
	if restarted {
		w.restarts = d.socket.Restarts
		s.forgetPrefill()
		a.counts.restarts.Add(1)
	}
	s.prefillSeen = validator.Normalise(in, s.prefillSeen)
	starting := !r.CapacityOptional && validator.Starting(in)
	if validator.OverCapacity(in) {
		a.counts.overCapacity.Add(1)
	}
	changed := restarted || w.refused != "" || w.turnedAway != "" || s.Received == 0 || s.expired || d.note != "" || starting != s.Starting ||
		!w.ranks[i].Load.SameLoad(in)
	if s.observePrefill(&w.ranks[i].Load, in) {
		changed = true
	}
	s.RankState = validator.RankState{Received: now, Starting: starting}
	s.expired, d.note, w.refused, w.turnedAway = false, "", "", ""
	a.queueLocked(w, now+micros(w.window))
	if !changed {
		a.markRefreshedLocked(w)
		return
	}
	if w.shared {
		w.ranks, w.shared = slices.Clone(w.ranks), false
	}
	w.ranks[i] = load.Rank{Load: *in, SampleAgeMs: -1}
	a.markDirtyLocked(w)
}

// SetRankNote lets a rank show why its socket has no data, until the next message; "" clears it. Unknown workers and
// ranks are ignored: they left in the meantime.
func (a *Aggregator) SetRankNote(id string, rank int32, note string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.workerLocked(id)
	if w == nil || w.spec.Transport != load.TransportZMQ {
		return
	}
	if i, found := slices.BinarySearchFunc(w.ranks, rank, byNumber); found && w.sockets.ranks[i].note != note {
		w.sockets.ranks[i].note = note
		a.markDirtyLocked(w)
	}
}

// dialRanksLocked gives a worker whose ranks we dial the ranks that registration expects: those that are no longer
// expected vanish together, new ones are missing.
func (w *worker) dialRanksLocked() {
	if w.spec.Transport != load.TransportZMQ || len(w.ranks) == w.spec.ExpectedRanks {
		return
	}
	numbers := make([]load.RankLoad, w.spec.ExpectedRanks)
	for i := range numbers {
		numbers[i].DPRank = int32(i)
	}
	before := len(w.ranks)
	w.regroupLocked(numbers)
	for i := before; i < len(numbers); i++ {
		w.ranks[i] = load.Rank{Load: numbers[i], SampleAgeMs: -1}
	}
}

func byNumber(r load.Rank, n int32) int { return int(r.Load.DPRank) - int(n) }

// noteConflict shows on the worker that two publishers share one of its ranks.
func (w *worker) noteConflict() {
	w.conflict = slices.ContainsFunc(w.sockets.ranks, func(d dialledRank) bool { return d.conflict })
}
