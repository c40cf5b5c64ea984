package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestCutLines_KeepsEveryLineWithinTheWidth(t *testing.T) {
	for _, c := range []struct {
		text  string
		width int
		want  string
	}{
		{"", 5, ""},
		{"abcde\nf", 5, "abcde\nf"},
		{"abcdef\n\nghijklmn\n", 5, "abcd…\n\nghij…\n"},
		{"äöüäöü\n", 5, "äöüä…\n"},
		{"ab\n", 1, "…\n"},
	} {
		if got := cutLines(c.text, c.width); got != c.want {
			t.Errorf("%q in %d columns is %q, want %q", c.text, c.width, got, c.want)
		}
	}
}

func TestScreenFrame_RedrawsInPlace(t *testing.T) {
	if got, want := screenFrame("one\ntwo is long\n", 6, 24), "\x1b[Hone\x1b[K\ntwo i…\x1b[K\n\x1b[J"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := strings.Count(screenFrame(strings.Repeat("x\n", 40), 80, 10), "\n"); got != 9 {
		t.Errorf("%d lines on a screen of 10: the last one would scroll", got)
	}
}

func TestRecentLines_KeepsTheNewest(t *testing.T) {
	var r recentLines
	for i := range recentLimit + 3 {
		fmt.Fprintf(&r, "line %d\n", i)
	}
	if got, want := r.last(2), "line 51\nline 52\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := r.last(1000); strings.Count(got, "\n") != recentLimit || !strings.HasPrefix(got, "line 3\n") {
		t.Errorf("kept:\n%s", got)
	}
}
