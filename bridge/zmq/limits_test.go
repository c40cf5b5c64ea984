package zmq

import (
	"strings"
	"testing"
	"time"
)

func TestLimitsOf(t *testing.T) {
	for _, c := range []struct{ files, wanted, least, most int }{
		{256, 0, 40, 64},        // the rest of the process keeps half of few
		{1024, 0, 180, 256},     //
		{20_000, 0, 8192, 9500}, // 8,192 ranks fit here
		{1 << 20, 0, 65536, 1 << 20},
		{20_000, 100, 100, 100},
		{16, 0, 1, 4},
	} {
		l := limitsOf(c.files, c.wanted)
		if l.sockets < c.least || l.sockets > c.most {
			t.Errorf("%d files: %d sockets, want %d to %d", c.files, l.sockets, c.least, c.most)
		}
		if used := l.sockets*filesPerSocket + l.reserve + int(numClasses)*l.dials; c.files >= 256 && used > c.files {
			t.Errorf("%d files: %d are planned for", c.files, used)
		}
		if n := limitsOf(l.needed(5000), 0).sockets; n < 5000 {
			t.Errorf("%d open files are called enough for 5000 sockets, and %d fit", l.needed(5000), n)
		}
		if s := l.shortfall(123456); !strings.Contains(s, "too many open files: 123456 ranks") {
			t.Errorf("shortfall %q", s)
		}
	}
}

func TestBridge_HeartbeatsCostTheSameForAnyFleet(t *testing.T) {
	b, err := New(Options{Sink: newRecorder()})
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]time.Duration{
		0: minHeartbeat, 1000: minHeartbeat, 2000: 40 * time.Second, 8192: maxHeartbeat, 1 << 20: maxHeartbeat,
	} {
		if got := b.heartbeat(n); got != want {
			t.Errorf("%d sockets: %v, want %v", n, got, want)
		}
	}
}

// Places go to who waited longest, and never twice.
func TestPlaces(t *testing.T) {
	var p places
	p.open(2)
	ranks := make([]*rank, 6)
	for i := range ranks {
		ranks[i] = &rank{}
		if got := p.take(ranks[i]); got != (i < 2) {
			t.Fatalf("rank %d: place %v", i, got)
		}
	}
	if p.leave(ranks[3]) != nil || p.waiting() != 3 {
		t.Errorf("one that waited left: %d wait, want 3", p.waiting())
	}
	if p.leave(ranks[3]) != nil || p.waiting() != 3 {
		t.Errorf("it left twice: %d wait, want 3", p.waiting())
	}
	for i, next := range []*rank{ranks[2], ranks[4]} {
		if got := p.leave(ranks[i]); got != next {
			t.Errorf("after rank %d another one than expected follows", i)
		}
	}
	for _, i := range []int{2, 5, 4} {
		p.leave(ranks[i])
	}
	if p.waiting() != 0 || p.free != 2 {
		t.Errorf("%d wait and %d are free, want 0 and 2", p.waiting(), p.free)
	}
}
