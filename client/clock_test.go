package client

import (
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

func TestClock_KeepsTheTightestBounds(t *testing.T) { // WATCH 8
	base := time.Now()
	at := func(ms int) time.Time { return base.Add(time.Duration(ms) * time.Millisecond) }
	var c *clock
	for i, tc := range []struct {
		asked, arrival int // ms after base
		now            load.Instant
		zero, floor    int // ms after base
	}{
		// The monitor's clock truly stood at zero at base.
		{asked: 90, arrival: 130, now: 100_000, zero: 30, floor: -10},
		{asked: 90, arrival: 220, now: 200_000, zero: 20, floor: -10}, // faster on the way
		{asked: 90, arrival: 350, now: 300_000, zero: 20, floor: -10}, // slower teaches nothing
		{asked: 398, arrival: 401, now: 400_000, zero: 1, floor: -2},  // a new stream, asked on an open connection
		{asked: 398, arrival: 500, now: 0, zero: 1, floor: -2},        // not told
	} {
		before := c
		c = c.observe(at(tc.asked), at(tc.arrival), tc.now)
		if !c.zero.Equal(at(tc.zero)) || !c.floor.Equal(at(tc.floor)) {
			t.Errorf("step %d: zero %v, floor %v after base: want %d ms, %d ms", i, c.zero.Sub(base), c.floor.Sub(base), tc.zero, tc.floor)
		}
		if (i == 2 || i == 4) && c != before {
			t.Errorf("step %d makes a new clock of the same knowledge", i)
		}
	}
	if got := c.bound(); got != 3*time.Millisecond {
		t.Errorf("bound %v: want 3ms", got)
	}
	if got := c.at(50_000); !got.Equal(at(51)) {
		t.Errorf("at 50 ms is %v after base: want 51ms", got.Sub(base))
	}
	if got := c.notAfter(50_000); !got.Equal(at(48)) {
		t.Errorf("at 50 ms is not after %v after base: want 48ms", got.Sub(base))
	}
}

func TestClock_NeverIsTheZeroTime(t *testing.T) {
	now := time.Now()
	known := (*clock)(nil).observe(now, now, 1)
	for name, got := range map[string]time.Time{
		"nil clock": (*clock)(nil).at(5), "instant 0": known.at(0), "nil clock, not after": (*clock)(nil).notAfter(5), "instant 0, not after": known.notAfter(0),
	} {
		if !got.IsZero() {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestClock_CrossedBoundsCountAsNone(t *testing.T) {
	now := time.Now()
	// The second stream was asked for later than the first one's frame says that it can have been: the clocks drift.
	c := (*clock)(nil).observe(now, now, 1_000_000).observe(now.Add(2*time.Second), now.Add(2*time.Second), 2_999_000)
	if got := c.bound(); got != 0 {
		t.Errorf("bound %v: want 0", got)
	}
}

func TestWorker_AgesAreNeverUnderstated(t *testing.T) { // WIRE 8: arrival - age, less a bound for the link
	base := time.Now()
	// Asked at base, stamped 20 ms on the monitor's clock, arrived 10 ms after base.
	c := (*clock)(nil).observe(base, base.Add(10*time.Millisecond), 20_000)
	w := Worker{clock: c, Status: &Status{
		Freshness: load.Fresh, oldest: 12_000,
		Ranks: []Rank{{Freshness: load.Fresh, received: 12_000}, {Freshness: load.Fresh, received: 15_000}, {Freshness: load.Missing}},
	}}
	// 8 ms before the stamp, which was made at base or later.
	if got := w.OldestReceivedAt().Sub(base); got != -8*time.Millisecond {
		t.Errorf("oldest was received %v after base: want -8ms", got)
	}
	if got := w.ReceivedAt(1).Sub(base); got != -5*time.Millisecond {
		t.Errorf("rank 1 was received %v after base: want -5ms", got)
	}
	if !w.ReceivedAt(2).IsZero() {
		t.Error("a missing rank was received")
	}
	if age, ok := w.Age(base.Add(10 * time.Millisecond)); !ok || age != 18*time.Millisecond {
		t.Errorf("age %v, %t: want 18ms", age, ok)
	}
	w.refreshed = 14_000
	if got := w.OldestReceivedAt().Sub(base); got != -6*time.Millisecond {
		t.Errorf("oldest was received %v after base, with the mark: want -6ms", got)
	}

	stale := Worker{clock: c, Status: &Status{Freshness: load.Stale, Ranks: []Rank{{Freshness: load.Stale, received: 9_000}, {Freshness: load.Stale, received: 3_000}}}}
	if !stale.OldestReceivedAt().IsZero() {
		t.Error("no rank is fresh, yet the oldest fresh one was received")
	}
	if age, ok := stale.Age(base); !ok || age != 17*time.Millisecond {
		t.Errorf("age of stale ranks %v, %t: want 17ms", age, ok)
	}
	missing := Worker{clock: c, Status: &Status{Freshness: load.Missing}}
	if age, ok := missing.Age(base); ok {
		t.Errorf("a worker that never reported has age %v", age)
	}
}
