package watch

import (
	"testing"
	"time"
)

// The clock of these tests starts at zero; a row is what a watcher does at one moment.
func TestTurn_DecidesByVersionBeatAndTime(t *testing.T) {
	t.Parallel()
	zero := time.Unix(1000, 0)
	at := func(d time.Duration) time.Time { return zero.Add(d) }
	const ms = time.Millisecond
	for _, tc := range []struct {
		name  string
		turn  turn
		at    time.Duration
		ver   uint64
		beat  uint64
		want  step
		until time.Duration
	}{
		{"nothing new", turn{looked: 5, beat: 2}, 0, 5, 2, stepIdle, 0},
		{"a version sends at once", turn{looked: 5, beat: 2, updated: at(-ms)}, 0, 6, 2, stepLook, 0},
		{"a beat", turn{looked: 5, beat: 2}, 0, 5, 3, stepBeat, 0},
		{"a version and a beat", turn{looked: 5, beat: 2}, 0, 6, 3, stepLook, 0},
		{"too early for an update", turn{looked: 5, beat: 2, asked: 500 * ms, updated: at(-100 * ms), beatAt: at(-100 * ms)}, 0, 6, 2, stepSleep, 400 * ms},
		{"too early for long: wake for the beat", turn{looked: 5, beat: 2, asked: time.Minute, updated: at(-100 * ms), beatAt: at(-300 * ms)}, 0, 6, 2, stepSleep, 700 * ms},
		{"the beat is late: listen", turn{looked: 5, beat: 2, asked: time.Minute, updated: at(-10000 * ms), beatAt: at(-1200 * ms)}, 0, 6, 2, stepEither, 50000 * ms},
		{"a beat in an interval", turn{looked: 5, beat: 2, asked: time.Minute, updated: at(-100 * ms)}, 0, 6, 3, stepBeat, 0},
		{"the interval is over", turn{looked: 5, beat: 2, asked: 500 * ms, updated: at(-500 * ms)}, 0, 6, 2, stepLook, 0},
	} {
		tc.turn.beats = time.Second
		got, until := tc.turn.next(at(tc.at), tc.ver, tc.beat)
		if got != tc.want || (!until.IsZero() && !until.Equal(at(tc.until))) {
			t.Errorf("%s: step %d until +%v, want %d until +%v", tc.name, got, until.Sub(zero), tc.want, tc.until)
		}
	}
}

// Rule W4: each beat in which nothing else was sent gets a frame, so two beats never pass without one.
func TestTurn_AnswersBeatsWithNothingElseInBetween(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	var tn turn
	tn.lookedAt(now, 1, 0, true, true) // the first frame, during beat 0
	for _, tc := range []struct {
		beat     uint64
		sent     bool // an update goes out before the beat
		answered bool
	}{{1, false, false}, {2, false, true}, {3, false, true}, {4, true, false}, {5, false, true}} {
		if tc.sent {
			tn.lookedAt(now, uint64(tc.beat), tc.beat-1, true, true)
		}
		if got := tn.mustAnswer(tc.beat); got != tc.answered {
			t.Errorf("beat %d is answered: %v, want %v", tc.beat, got, tc.answered)
		}
		tn.answered(now, tc.beat, tc.answered)
	}
}
