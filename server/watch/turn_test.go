package watch

import (
	"slices"
	"testing"
	"time"
)

func paced(interval time.Duration) *pace {
	p := &pace{zero: time.Unix(0, 0)}
	p.cpus.Store(2)
	p.watchers.Store(1)
	p.cost.Store(int64(interval))
	return p
}

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
		{"a lone watcher sends at once", turn{looked: 5, beat: 2, worked: at(-ms), updated: at(-ms)}, 0, 6, 2, stepLook, 0},
		{"a beat", turn{looked: 5, beat: 2}, 0, 5, 3, stepBeat, 0},
		{"a version and a beat", turn{looked: 5, beat: 2}, 0, 6, 3, stepLook, 0},
		{"too early for an update", turn{looked: 5, beat: 2, asked: 500 * ms, updated: at(-100 * ms), beatAt: at(-100 * ms)}, 0, 6, 2, stepSleep, 400 * ms},
		{"too early for long: wake for the beat", turn{looked: 5, beat: 2, asked: time.Minute, updated: at(-100 * ms), beatAt: at(-300 * ms)}, 0, 6, 2, stepSleep, 700 * ms},
		{"the beat is late: listen", turn{looked: 5, beat: 2, asked: time.Minute, updated: at(-10000 * ms), beatAt: at(-1200 * ms)}, 0, 6, 2, stepEither, 50000 * ms},
		{"a beat in an interval", turn{looked: 5, beat: 2, asked: time.Minute, updated: at(-100 * ms)}, 0, 6, 3, stepBeat, 0},
		{"the interval is over", turn{looked: 5, beat: 2, asked: 500 * ms, updated: at(-500 * ms)}, 0, 6, 2, stepLook, 0},
		{"paced after a send", turn{looked: 5, beat: 2, pace: paced(40 * ms), phase: 0.5, worked: at(-10 * ms), beatAt: at(-10 * ms)}, 0, 6, 2, stepSleep, 30 * ms},
		{"paced by phase", turn{looked: 5, beat: 2, pace: paced(40 * ms), phase: 0.5, worked: at(-time.Second), beatAt: at(-10 * ms)}, 0, 6, 2, stepSleep, 20 * ms},
		{"beats are paced too", turn{looked: 5, beat: 2, pace: paced(40 * ms), phase: 0.25, worked: at(-time.Second)}, 0, 5, 3, stepSleep, 10 * ms},
	} {
		tc.turn.beats = time.Second
		if tc.turn.pace == nil {
			tc.turn.pace = &pace{}
		}
		got, until := tc.turn.next(at(tc.at), tc.ver, tc.beat)
		if got != tc.want || (!until.IsZero() && !until.Equal(at(tc.until))) {
			t.Errorf("%s: step %d until +%v, want %d until +%v", tc.name, got, until.Sub(zero), tc.want, tc.until)
		}
	}
}

// A slot that moved on with every look would never come.
func TestTurn_KeepsItsSlotUntilItIsUsed(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	tn := turn{beats: time.Second, pace: paced(40 * time.Millisecond), phase: 0.5, beatAt: now}
	for i := range 4 {
		if step, until := tn.next(now.Add(time.Duration(i*5)*time.Millisecond), uint64(1+i), 0); step != stepSleep || !until.Equal(now.Add(20*time.Millisecond)) {
			t.Fatalf("look %d: step %d until +%v, want a sleep until +20ms", i, step, until.Sub(now))
		}
	}
	now = now.Add(20 * time.Millisecond)
	if step, _ := tn.next(now, 5, 0); step != stepLook {
		t.Fatalf("step %d at the slot, want a look", step)
	}
	tn.lookedAt(now, 5, 0, true, true)
	if step, until := tn.next(now.Add(time.Millisecond), 6, 0); step != stepSleep || !until.Equal(now.Add(40*time.Millisecond)) {
		t.Errorf("after the send: step %d until +%v, want a sleep until +40ms", step, until.Sub(now))
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

// Rule W8.
func TestPace_KeepsSendingWithinHalfOfTheCPUs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		watchers int64
		cost     time.Duration
		cpus     int64
		want     time.Duration
	}{
		{"one watcher", 1, 25 * time.Microsecond, 2, 0},
		{"few watchers", 30, 25 * time.Microsecond, 2, 0},
		{"a thousand", 1000, 25 * time.Microsecond, 2, 25 * time.Millisecond},
		{"a thousand on eight CPUs", 1000, 25 * time.Microsecond, 8, 6250 * time.Microsecond},
		{"a thousand on one CPU", 1000, 25 * time.Microsecond, 1, 50 * time.Millisecond},
		{"nothing measured yet", 1000, 0, 2, 0},
	} {
		p := &pace{}
		p.watchers.Store(tc.watchers)
		p.cost.Store(int64(tc.cost))
		p.cpus.Store(tc.cpus)
		if got := p.interval(); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestPace_CostFollowsSendsButNotBlockedOnes(t *testing.T) {
	t.Parallel()
	p := &pace{}
	for range 1000 {
		p.observe(3 * time.Microsecond)
		p.observe(5 * time.Second) // waited for the watcher
	}
	if got, want := time.Duration(p.cost.Load()), 3*sendShare*time.Microsecond; got != want {
		t.Errorf("cost %v, want %v", got, want)
	}
	for range 1000 {
		p.observe(6 * time.Microsecond)
	}
	if got := time.Duration(p.cost.Load()); got < 5*sendShare*time.Microsecond || got > 6*sendShare*time.Microsecond {
		t.Errorf("cost %v does not follow", got)
	}
}

func TestPhases_LieFarApart(t *testing.T) {
	t.Parallel()
	var p phases
	for _, n := range []int{2, 10, 1000} {
		list := make([]float64, n)
		for i := range list {
			list[i] = p.next()
		}
		slices.Sort(list)
		for i, phase := range list {
			if phase < 0 || phase >= 1 {
				t.Fatalf("phase %v", phase)
			}
			if i > 0 && phase-list[i-1] < 0.3/float64(n) {
				t.Errorf("of %d phases two are only %v apart", n, phase-list[i-1])
			}
		}
	}
}
