package pub

import (
	"testing"
	"time"
)

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// turn is one turn of a scheduler loop.
type turn struct {
	after time.Duration // since the turn before
	step  Step
	value int
	sent  bool
}

func TestCadence(t *testing.T) {
	const ms = time.Millisecond
	array := pace{every: DefaultEvery}
	every := pace{allIdle: true, every: DefaultEvery}
	paced := pace{allIdle: true, every: DefaultEvery, idleWait: 10 * ms}
	for _, tc := range []struct {
		name  string
		pace  pace
		turns []turn
	}{
		{"the first value goes out at once", array, []turn{{0, Decode, 1, true}}},
		{"a changed value at every fifth decode step", array, []turn{
			{0, Idle, 0, true},
			{20 * ms, Decode, 1, false}, {20 * ms, Decode, 2, false}, {20 * ms, Decode, 3, false}, {20 * ms, Decode, 4, false}, {20 * ms, Decode, 5, true},
			{20 * ms, Decode, 6, false}, {20 * ms, Decode, 7, false}, {20 * ms, Decode, 8, false}, {20 * ms, Decode, 9, false}, {20 * ms, Decode, 10, true},
		}},
		{"at once on prefill, and the count begins anew", array, []turn{
			{0, Idle, 0, true},
			{20 * ms, Decode, 1, false}, {20 * ms, Decode, 2, false}, {20 * ms, Prefill, 3, true},
			{20 * ms, Decode, 4, false}, {20 * ms, Decode, 5, false}, {20 * ms, Decode, 6, false}, {20 * ms, Decode, 7, false}, {20 * ms, Decode, 8, true},
		}},
		// Case C8.
		{"at once on idle", array, []turn{{0, Decode, 8, true}, {20 * ms, Decode, 9, false}, {1 * ms, Idle, 0, true}, {1 * ms, Idle, 0, false}}},
		// Case C4.
		{"an unchanged value about once a second", array, []turn{
			{0, Idle, 0, true}, {500 * ms, Idle, 0, false}, {500 * ms, Idle, 0, true}, {500 * ms, Idle, 0, false}, {500 * ms, Idle, 0, true},
		}},
		{"once a second also when the loop turns once a second", array, []turn{
			{0, Idle, 0, true}, {1000 * ms, Idle, 0, true}, {985 * ms, Idle, 0, true}, {1015 * ms, Idle, 0, true},
		}},
		{"an unchanged value at no fifth step", array, []turn{
			{0, Decode, 1, true},
			{10 * ms, Decode, 1, false}, {10 * ms, Decode, 1, false}, {10 * ms, Decode, 1, false}, {10 * ms, Decode, 1, false}, {10 * ms, Decode, 1, false},
		}},
		{"slow decode steps do not wait for the fifth", array, []turn{{0, Decode, 1, true}, {950 * ms, Decode, 2, true}, {2000 * ms, Decode, 2, true}}},
		{"a stalled loop at most each 50 ms", array, []turn{
			{0, Decode, 1, true}, {10 * ms, Stalled, 2, false}, {39 * ms, Stalled, 2, false}, {1 * ms, Stalled, 2, true},
			{1 * ms, Stalled, 3, false}, {48 * ms, Stalled, 4, false}, {1 * ms, Stalled, 5, true}, {50 * ms, Stalled, 5, false}, {850 * ms, Stalled, 5, true},
		}},
		{"a map at every idle turn", every, []turn{{0, Idle, 0, true}, {0, Idle, 0, true}, {1, Idle, 0, true}, {1, Decode, 1, false}}},
		{"a map at the idle rate that is asked for", paced, []turn{
			{0, Idle, 0, true}, {9 * ms, Idle, 0, false}, {1 * ms, Idle, 0, true}, {1 * ms, Idle, 1, true}, {9 * ms, Idle, 1, false}, {1 * ms, Idle, 1, true},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var c cadence
			now, last := begin, -1
			for i, turn := range tc.turns {
				now = now.Add(turn.after)
				sent := c.look(turn.step, tc.pace, now) && c.due(turn.step, turn.value != last, tc.pace, now)
				if sent != turn.sent {
					t.Fatalf("turn %d (%+v): sent %v", i, turn, sent)
				}
				if sent {
					last = turn.value
				}
			}
		})
	}
}

// Case C4: however fast an idle loop turns, the array is repeated about once a second and never later.
func TestCadence_IdleLoopOfAnySpeedRepeatsAboutOnceASecond(t *testing.T) {
	for _, every := range []time.Duration{50 * time.Microsecond, time.Millisecond, 7 * time.Millisecond, 100 * time.Millisecond, 333 * time.Millisecond} {
		var c cadence
		last, n := begin, 0
		for now := begin; now.Before(begin.Add(20 * time.Second)); now = now.Add(every) {
			if !c.look(Idle, pace{every: DefaultEvery}, now) || !c.due(Idle, false, pace{every: DefaultEvery}, now) {
				continue
			}
			if gap := now.Sub(last); n > 0 && (gap < heartbeat || gap > heartbeat+every) {
				t.Fatalf("loop of %v: a gap of %v", every, gap)
			}
			last = now
			n++
		}
		if n < 18 || n > 23 {
			t.Errorf("loop of %v: %d messages in 20 s", every, n)
		}
	}
}
