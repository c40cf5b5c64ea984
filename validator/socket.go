package validator

import (
	"fmt"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// Bounds of rule SEQ2.
const (
	conflictRestarts = 2                       // more restarts than this within conflictPeriod are two publishers
	conflictPeriod   = 10 * time.Second        // and it is over when the one that is kept has had this time for itself
	keptSilence      = 2500 * time.Millisecond // or when the one that is kept has gone
)

// Socket is the sequence state of one rank that is fed over a socket of its own (rule SEQ2). The zero value has seen
// nothing.
type Socket struct {
	last     int64
	seen     bool
	accepted load.Instant // receipt of the newest accepted message

	Restarts uint32 // times that the sequence went back
	recent   [conflictRestarts]load.Instant
	// Conflict says that two publishers share the socket and the one that sent last is kept; refused is the newest message
	// of another.
	Conflict bool
	refused  load.Instant
}

// Accept judges the next message: the newest wins. It returns how many messages the gap before it holds: none when the
// sequence rose by more than 2^32, which is another count and says nothing of what was missed. Equal is a duplicate
// (load.ErrSequenceOld). Going backwards is a restart of the publisher, accepted at once; the third within 10 s
// means that two publishers share the rank: the one heard last is kept, the other refused (load.ErrPublisherConflict)
// until the kept one is gone or has been alone for 10 s.
func (s *Socket) Accept(seq int64, now load.Instant) (gap uint64, err error) {
	if seq < 0 {
		return 0, fmt.Errorf("sequence %d: %w", seq, load.ErrSequenceRange)
	}
	if s.Conflict && (since(s.accepted, now) >= keptSilence || since(s.refused, now) >= conflictPeriod) {
		s.Conflict = false
		s.recent = [conflictRestarts]load.Instant{}
	}
	switch {
	case !s.seen:
	case seq == s.last:
		return 0, fmt.Errorf("sequence %d again: %w", seq, load.ErrSequenceOld)
	case seq > s.last:
		if rise := uint64(seq - s.last); rise <= maxJump {
			gap = rise - 1
		}
	case s.Conflict:
		s.refused = now
		return 0, fmt.Errorf("sequence %d, last %d: %w", seq, s.last, load.ErrPublisherConflict)
	default:
		if oldest := s.recent[0]; oldest != 0 && since(oldest, now) < conflictPeriod {
			s.Conflict, s.refused = true, now
			return 0, fmt.Errorf("sequence %d, last %d: %w", seq, s.last, load.ErrPublisherConflict)
		}
		copy(s.recent[:], s.recent[1:])
		s.recent[conflictRestarts-1] = now
		s.Restarts++
	}
	s.last, s.seen, s.accepted = seq, true, now
	return gap, nil
}

func since(then, now load.Instant) time.Duration { return time.Duration(now-then) * time.Microsecond }
