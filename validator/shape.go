package validator

import (
	"fmt"
	"math"
	"slices"

	"github.com/loadmonitor/loadmonitor/load"
)

// Limits bounds what one report may carry (rule LIFE2).
type Limits struct {
	MaxRanks  int   // ranks in one report
	MaxDPRank int32 // highest dp_rank
}

// maxSourceInstance bounds the one identity that the monitor keeps as it was sent, in bytes.
const maxSourceInstance = 256

// Shape reports whether a report can be taken at all: source instance and sequence in range, a known status, ranks that
// are present, in range, distinct, and finite non-negative values (rules SEQ1 and VAL2). One bad value refuses the whole
// report. The error names rank and field.
func Shape(r *load.Report, l Limits) error {
	if n := len(r.SourceInstance); n == 0 || n > maxSourceInstance {
		return fmt.Errorf("source_instance_id of %d bytes: %w", n, load.ErrSourceInstance)
	}
	if r.Sequence == 0 || r.Sequence > math.MaxInt64 {
		return fmt.Errorf("sequence_id %d: %w", r.Sequence, load.ErrSequenceRange)
	}
	switch r.Status {
	case load.StatusUnreachable:
		return nil // ranks are not looked at: the engine says that it has none
	case load.StatusHealthy, load.StatusStale:
	default:
		return fmt.Errorf("status %d: %w", r.Status, load.ErrStatus)
	}
	if len(r.Ranks) == 0 {
		return load.ErrNoRanks
	}
	if len(r.Ranks) > l.MaxRanks {
		return fmt.Errorf("%d ranks, at most %d: %w", len(r.Ranks), l.MaxRanks, load.ErrTooManyRanks)
	}
	ascending := true
	for i := range r.Ranks {
		rank := &r.Ranks[i]
		if err := RankShape(rank, l); err != nil {
			return err
		}
		ascending = ascending && (i == 0 || r.Ranks[i-1].DPRank < rank.DPRank)
	}
	if ascending {
		return nil
	}
	return distinct(r.Ranks)
}

// RankShape reports whether one rank can be taken: its number in range and its values finite and not negative.
func RankShape(rank *load.RankLoad, l Limits) error {
	if rank.DPRank < 0 || rank.DPRank > l.MaxDPRank {
		return fmt.Errorf("dp_rank %d, want 0 to %d: %w", rank.DPRank, l.MaxDPRank, load.ErrRankRange)
	}
	if err := values(rank); err != nil {
		return fmt.Errorf("rank %d %w", rank.DPRank, err)
	}
	return nil
}

// values checks the signals of one rank. Negative shares are not refused: they mean unknown (see Normalise).
func values(rank *load.RankLoad) error {
	for s := range load.NumIntSignals {
		if v, ok := rank.Int(s); ok && v < 0 {
			return fmt.Errorf("%s %d: %w", s, v, load.ErrNegative)
		}
	}
	for s := range load.NumFloatSignals {
		v, ok := rank.Float(s)
		if !ok {
			continue
		}
		if !load.Finite(v) {
			return fmt.Errorf("%s %v: %w", s, v, load.ErrNotFinite)
		}
		if v < 0 && !isShare(s) {
			return fmt.Errorf("%s %v: %w", s, v, load.ErrNegative)
		}
	}
	return nil
}

// isShare tells the signals whose negative value means unknown from throughputs, which must not be negative.
func isShare(s load.FloatSignal) bool {
	return s == load.TokenUsage || s == load.CacheHitRate || s == load.Utilization
}

func distinct(ranks []load.RankLoad) error {
	numbers := make([]int32, len(ranks))
	for i := range ranks {
		numbers[i] = ranks[i].DPRank
	}
	slices.Sort(numbers)
	for i := 1; i < len(numbers); i++ {
		if numbers[i] == numbers[i-1] {
			return fmt.Errorf("dp_rank %d: %w", numbers[i], load.ErrDuplicateRank)
		}
	}
	return nil
}
