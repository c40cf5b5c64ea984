package validator

import (
	"fmt"

	"github.com/loadmonitor/loadmonitor/load"
)

// maxJump bounds how far a sequence may rise at once. The counter is shared by all targets of an engine, so holes are
// normal; a rise beyond this is a wild value that would lock the source out.
const maxJump = 1 << 32

// maxFirst bounds the first sequence of a source instance. No process counts that far (a million reports a second take
// nine years), and a wild first value would lock the source out as well.
const maxFirst = 1 << 48

// Sequence reports whether seq may follow last, the last accepted one of the same source instance; 0: none yet
// (rule SEQ1). Shape has checked the range.
func Sequence(last, seq uint64) error {
	switch {
	case last == 0 && seq > maxFirst:
		return fmt.Errorf("sequence_id %d, the first of its source: %w", seq, load.ErrSequenceJump)
	case last == 0:
		return nil
	case seq <= last:
		return fmt.Errorf("sequence_id %d, last %d: %w", seq, last, load.ErrSequenceOld)
	case seq-last > maxJump:
		return fmt.Errorf("sequence_id %d, last %d: %w", seq, last, load.ErrSequenceJump)
	}
	return nil
}
