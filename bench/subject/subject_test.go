package subject

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/bench/drive"
)

// TestMain makes the test binary be a subject when it is started as one.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == Word {
		if err := Main(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func startSubject(t *testing.T, c Config) *Process {
	t.Helper()
	p, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// drove lets a fleet send to a subject until cond holds, and returns the fleet after its end.
func drove(t *testing.T, p *Process, rate float64, cond func(f *drive.Fleet, s Stats) bool) (*drive.Fleet, Stats) {
	t.Helper()
	f, err := drive.Dial(t.Context(), drive.Options{Target: p.Addr, Workers: Addresses(10), Ranks: 2, Connections: 3, Rate: rate})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := p.Measure(f.Start()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() { f.Send(ctx) })
	s := await(t, p, func(s Stats) bool { return cond(f, s) })
	stop()
	sending.Wait()
	if ended := f.Ended(); len(ended) > 0 {
		t.Errorf("streams ended: %v", ended)
	}
	after := await(t, p, func(s Stats) bool { return s.Messages >= f.Sent() })
	if after.Messages != f.Sent() || after.Refused != 0 {
		t.Errorf("sent %d, taken %d, refused %d", f.Sent(), after.Messages, after.Refused)
	}
	return f, s
}

// await asks for stats until they fit.
func await(t *testing.T, p *Process, fits func(Stats) bool) Stats {
	t.Helper()
	var all Stats
	for {
		s, err := p.Stats()
		if err != nil {
			t.Fatal(err)
		}
		if s.DelayCount > 0 {
			all = s
		}
		if fits(s) {
			s.DelayCount, s.DelayP50 = all.DelayCount, all.DelayP50
			return s
		}
		if t.Context().Err() != nil {
			t.Fatal("the test was ended")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestSubjects_TakeEveryReport(t *testing.T) {
	for _, kind := range []Kind{Monitor, Receiver, Sender, Pipe} {
		for _, rate := range []float64{100, 0} {
			t.Run(fmt.Sprintf("%s at %v Hz", kind, rate), func(t *testing.T) {
				p := startSubject(t, Config{Kind: kind, Workers: 10, Ranks: 2, FrameBytes: 100, FirstBytes: 100, IntervalMs: 1})
				_, s := drove(t, p, rate, func(_ *drive.Fleet, s Stats) bool { return s.Messages >= 100 })
				if s.CPU == 0 || s.RSS == 0 || s.Threads == 0 || s.AllocBytes == 0 || s.Wall == 0 {
					t.Errorf("usage was not measured: %+v", s)
				}
				if (kind == Monitor || kind == Receiver) && (s.DelayCount == 0 || s.DelayP50 <= 0 || s.DelayP50 > time.Minute) {
					t.Errorf("%d delays, half of them below %v: want some, of a likely length", s.DelayCount, s.DelayP50)
				}
			})
		}
	}
}

func TestSubjects_SendToReaders(t *testing.T) {
	for _, c := range []Config{
		{Kind: Monitor, Workers: 10, Ranks: 2},
		{Kind: Sender, FrameBytes: 200_000, FirstBytes: 10},
		{Kind: Sender, FrameBytes: 1000, FirstBytes: 10, SpreadMs: 3},
		{Kind: Pipe, IntervalMs: 5, PadBytes: 300},
	} {
		t.Run(fmt.Sprintf("%s spread %d", c.Kind, c.SpreadMs), func(t *testing.T) {
			p := startSubject(t, c)
			r, err := drive.Watch(t.Context(), p.Addr, 5)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			_, s := drove(t, p, 20, func(_ *drive.Fleet, s Stats) bool { return s.Frames >= 50 && r.Frames.Load() >= 50 })
			if ended := r.Ended(); len(ended) > 0 {
				t.Errorf("watches ended: %v", ended)
			}
			if s.Bytes == 0 || r.Bytes.Load() == 0 {
				t.Errorf("%d bytes sent, %d received", s.Bytes, r.Bytes.Load())
			}
		})
	}
}

func TestMonitor_ShowsDelaysToADecodingWatcher(t *testing.T) {
	p := startSubject(t, Config{Kind: Monitor, Workers: 10, Ranks: 2})
	var v *drive.View
	defer func() { v.Close() }()
	d, views := new(drive.Delays), uint64(0)
	f, _ := drove(t, p, 20, func(f *drive.Fleet, s Stats) bool {
		if v == nil {
			var err error
			if v, err = drive.Decode(t.Context(), p.Addr, f); err != nil {
				t.Fatal(err)
			}
		}
		more, n := v.Take()
		d.Merge(more)
		views += n
		return s.Messages >= 100 && d.Count() > 0
	})
	if d.Count() == 0 || views == 0 || d.Count() > f.Sent() || d.Quantile(0.5) <= 0 || d.Max() > time.Minute {
		t.Errorf("%d delays up to %v in %d views of %d reports", d.Count(), d.Max(), views, f.Sent())
	}
	if v.First() <= 0 || v.Newest().Len() != 10 {
		t.Errorf("first picture after %v, of %d workers", v.First(), v.Newest().Len())
	}
}

func TestStart_SaysWhyASubjectDoesNotStart(t *testing.T) {
	if p, err := Start(Config{Kind: "nonsense"}); err == nil {
		p.Stop()
		t.Error("a subject of an unknown kind was started")
	}
}
