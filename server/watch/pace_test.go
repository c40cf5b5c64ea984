package watch

import (
	"testing"
	"time"
)

// Rule W8, case I7: what sending to many watchers costs is bounded.
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
		p.observe(3*time.Microsecond, 0)
		p.observe(5*time.Second, 0) // waited for the watcher
	}
	if got, want := time.Duration(p.cost.Load()), 3*sendShare*time.Microsecond; got != want {
		t.Errorf("cost %v, want %v", got, want)
	}
	for range 1000 {
		p.observe(6*time.Microsecond, 0)
	}
	if got := time.Duration(p.cost.Load()); got < 5*sendShare*time.Microsecond || got > 6*sendShare*time.Microsecond {
		t.Errorf("cost %v does not follow", got)
	}
	for range 10_000 {
		p.observe(3*time.Microsecond, 100_000)
	}
	want := 3*sendShare*time.Microsecond + 100*kilobyteCost
	if got := time.Duration(p.cost.Load()); got < want*9/10 || got > want*11/10 {
		t.Errorf("cost %v of large frames, want about %v", got, want)
	}
}
