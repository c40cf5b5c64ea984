package client

import (
	"testing"
	"time"
)

func TestBackoff_AtMostTenTriesIn30Seconds(t *testing.T) { // I10
	for range 2000 {
		var b backoff
		tries := 0
		for at := time.Duration(0); at <= 30*time.Second; at += b.next() {
			tries++
		}
		if tries < 6 || tries > 10 {
			t.Fatalf("%d tries in 30 s: want 6 to 10", tries)
		}
	}
}

func TestBackoff_ClientsComeBackSpread(t *testing.T) { // I10: 500 clients lose one monitor in the same moment
	var tenths [10]int
	for range 500 {
		var b backoff
		first := b.next()
		if first < 100*time.Millisecond || first >= time.Second {
			t.Fatalf("first wait is %v: want 0.1 s to 1 s", first)
		}
		tenths[first/(100*time.Millisecond)]++
	}
	for i, n := range tenths[1:] {
		if n > 150 {
			t.Errorf("%d of 500 clients come back in tenth %d of the first second", n, i+1)
		}
	}
}

func TestBackoff_ResetStartsAnew(t *testing.T) {
	var b backoff
	for range 5 {
		b.next()
	}
	if d := b.next(); d < 4*time.Second || d > 5*time.Second {
		t.Errorf("late wait is %v: want 4 s to 5 s", d)
	}
	b.reset()
	if d := b.next(); d > time.Second {
		t.Errorf("first wait after a reset is %v", d)
	}
}
