package drive

import (
	"testing"
	"time"
)

func TestDelays_QuantilesAreCloseToTheDelays(t *testing.T) {
	for _, unit := range []time.Duration{time.Microsecond, time.Millisecond, time.Second} {
		d := new(Delays)
		for i := range 1000 {
			d.Add(time.Duration(i) * unit)
		}
		for q, want := range map[float64]time.Duration{0: 0, 0.5: 500 * unit, 0.99: 990 * unit, 0.999: 999 * unit, 1: 999 * unit} {
			if got := d.Quantile(q); got < want || got > want+want/60+time.Microsecond {
				t.Errorf("in %v: quantile %v is %v: want %v, or at most 1.6 %% more", unit, q, got, want)
			}
		}
		if d.Count() != 1000 || d.Max() != 999*unit {
			t.Errorf("in %v: %d delays up to %v", unit, d.Count(), d.Max())
		}
	}
}

func TestDelays_MergeAddsAll(t *testing.T) {
	a, b, both := new(Delays), new(Delays), new(Delays)
	for i := range 500 {
		a.Add(time.Duration(i) * time.Millisecond)
		b.Add(time.Duration(i) * time.Microsecond)
		both.Add(time.Duration(i) * time.Millisecond)
		both.Add(time.Duration(i) * time.Microsecond)
	}
	a.Merge(b)
	if *a != *both {
		t.Error("merged delays differ from the same delays added to one")
	}
}

func TestDelays_TakesWhatClocksGive(t *testing.T) {
	d := new(Delays)
	if d.Quantile(0.99) != 0 {
		t.Error("a quantile of nothing is not zero")
	}
	d.Add(-time.Second)
	d.Add(1<<63 - 1)
	if d.Quantile(0) != 0 || d.Quantile(1) != 1<<63-1 || d.Count() != 2 {
		t.Errorf("%v to %v of %d", d.Quantile(0), d.Quantile(1), d.Count())
	}
}
