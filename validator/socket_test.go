package validator

import (
	"errors"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// Rule SEQ2; cases B1, B3, B5 and E6.
func TestSocket_SEQ2(t *testing.T) {
	type step struct {
		at       time.Duration
		seq      int64
		gap      uint64
		want     error
		restarts uint32
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"a gap is counted and accepted at once (B3)", []step{
			{0, 1, 0, nil, 0}, {0, 2, 0, nil, 0}, {0, 500, 497, nil, 0}, {0, 501, 0, nil, 0},
		}},
		{"equal is a duplicate (B1)", []step{{0, 1000, 0, nil, 0}, {0, 1000, 0, load.ErrSequenceOld, 0}, {0, 1001, 0, nil, 0}}},
		{"starts at 0", []step{{0, 0, 0, nil, 0}, {0, 1, 0, nil, 0}}},
		{"a negative one is refused and locks nobody out (B5)", []step{
			{0, -1, 0, load.ErrSequenceRange, 0}, {0, 1, 0, nil, 0}, {0, -1 << 63, 0, load.ErrSequenceRange, 0}, {0, 2, 0, nil, 0},
		}},
		{"the highest one does not lock out what follows (B5)", []step{
			{0, 1<<63 - 1, 0, nil, 0}, {time.Second, 1, 0, nil, 1}, {2 * time.Second, 2, 0, nil, 1},
		}},
		{"a wild one is taken and no gap, what follows it lower is a restart (B5)", []step{
			{0, 1, 0, nil, 0}, {time.Second, 1<<63 - 1, 0, nil, 0}, {2 * time.Second, 2, 0, nil, 1}, {3 * time.Second, 5, 2, nil, 1},
		}},
		{"the longest gap, and a longer one (B5)", []step{
			{0, 1, 0, nil, 0}, {0, 1 + 1<<32, 1<<32 - 1, nil, 0}, {0, 2 + 1<<33, 0, nil, 0}, {0, 4 + 1<<33, 1, nil, 0},
		}},
		{"wild ones between others are a second publisher: the kept one goes on (B5)", []step{
			{0, 1, 0, nil, 0}, {1e8, 1<<63 - 1, 0, nil, 0}, {2e8, 2, 0, nil, 1}, {3e8, 1<<63 - 1, 0, nil, 1}, {4e8, 3, 0, nil, 2},
			{5e8, 1<<63 - 1, 0, nil, 2}, {6e8, 4, 0, load.ErrPublisherConflict, 2}, {31e8, 5, 0, nil, 3}, {32e8, 6, 0, nil, 3},
		}},
		{"going back is a restart, accepted at once", []step{{0, 90, 0, nil, 0}, {time.Second, 0, 0, nil, 1}, {2 * time.Second, 1, 0, nil, 1}}},
		{"two restarts in 10 s are restarts", []step{{0, 9, 0, nil, 0}, {1e9, 0, 0, nil, 1}, {2e9, 5, 4, nil, 1}, {3e9, 0, 0, nil, 2}}},
		{"restarts far apart never conflict", []step{
			{0, 9, 0, nil, 0}, {6e9, 0, 0, nil, 1}, {7e9, 9, 8, nil, 1}, {12e9, 0, 0, nil, 2}, {13e9, 9, 8, nil, 2}, {18e9, 0, 0, nil, 3},
		}},
		{"two publishers: the one heard last is kept (E6)", []step{
			{0, 100, 0, nil, 0}, {1e8, 5, 0, nil, 1}, {2e8, 101, 95, nil, 1}, {3e8, 6, 0, nil, 2}, {4e8, 102, 95, nil, 2},
			{5e8, 7, 0, load.ErrPublisherConflict, 2}, {6e8, 103, 0, nil, 2}, {7e8, 8, 0, load.ErrPublisherConflict, 2}, {8e8, 104, 0, nil, 2},
		}},
		{"the kept one goes: the other is taken", []step{
			{0, 100, 0, nil, 0}, {1e8, 5, 0, nil, 1}, {2e8, 101, 95, nil, 1}, {3e8, 6, 0, nil, 2}, {4e8, 102, 95, nil, 2},
			{5e8, 7, 0, load.ErrPublisherConflict, 2}, {2e9, 8, 0, load.ErrPublisherConflict, 2}, {29e8, 9, 0, nil, 3}, {3e9, 10, 0, nil, 3},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s Socket
			for i, st := range c.steps {
				gap, err := s.Accept(st.seq, load.Instant(st.at.Microseconds())+1)
				if gap != st.gap || !errors.Is(err, st.want) || s.Restarts != st.restarts {
					t.Fatalf("step %d: gap %d, %v, %d restarts; want %d, %v, %d", i, gap, err, s.Restarts, st.gap, st.want, st.restarts)
				}
			}
		})
	}
}
