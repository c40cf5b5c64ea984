package engine

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// probe is a sink that keeps what it gets, or fails.
type probe struct {
	got []*sample
	err error
}

func (p *probe) publish(s *sample) error {
	p.got = append(p.got, s)
	return p.err
}

// still returns an engine that lives without sockets, with further sinks.
func still(t *testing.T, opts Options, sinks ...sink) *engine {
	t.Helper()
	if err := opts.setDefaults(); err != nil {
		t.Fatal(err)
	}
	e := newEngine(0, &opts, func(err error) { t.Error(err) })
	e.crashed, e.life, e.hot = false, 1, -1
	e.silent = make([]bool, opts.Ranks)
	e.readyAt = time.Time{}.Add(opts.StartingFor)
	for _, s := range sinks {
		e.outlets = append(e.outlets, &outlet{name: "test", sink: s})
	}
	return e
}

// at returns the moment d after the beginning of still engines.
func at(d time.Duration) time.Time { return time.Time{}.Add(d) }

func TestCycle_OneCollectionFeedsEverySinkAndAFailureCostsNoOther(t *testing.T) {
	first, broken, last := &probe{}, &probe{err: errors.New("pipe is full")}, &probe{}
	e := still(t, Options{}, first, broken, last)
	for i := range 20 {
		d := time.Duration(i) * 100 * time.Millisecond
		e.cycle(at(d), d)
	}
	if len(first.got) != 20 || len(broken.got) != 20 || len(last.got) != 20 {
		t.Fatalf("sinks got %d, %d and %d of 20 collections", len(first.got), len(broken.got), len(last.got))
	}
	for i := range first.got {
		if first.got[i] != last.got[i] || first.got[i] != broken.got[i] {
			t.Fatalf("collection %d differs between sinks", i)
		}
	}
	if n := e.outlets[1].failed.Load(); n != 20 {
		t.Errorf("%d failures were counted, want 20", n)
	}
	if n := e.outlets[0].failed.Load() + e.outlets[2].failed.Load(); n != 0 {
		t.Errorf("%d failures were counted of good sinks", n)
	}
}

func TestFeed_OneLogLinePerEpisode(t *testing.T) {
	var lines lineCounter
	broken := &probe{err: errors.New("pipe is full")}
	outlets := []*outlet{{name: "test", sink: broken}}
	logger := slog.New(slog.NewTextHandler(&lines, nil))
	for range 5 {
		feed(outlets, &sample{}, logger)
	}
	if lines != 1 {
		t.Errorf("%d lines in one episode, want 1", lines)
	}
	broken.err = nil
	for range 5 {
		feed(outlets, &sample{}, logger)
	}
	if lines != 2 {
		t.Errorf("%d lines after it, want 2", lines)
	}
}

type lineCounter int

func (c *lineCounter) Write(b []byte) (int, error) { *c++; return len(b), nil }

func TestCycle_ASampleNeverChangesLater(t *testing.T) {
	p := &probe{}
	e := still(t, Options{Ranks: 3, Load: 2}, p)
	var copies [][]load.RankLoad
	for i := range 100 {
		d := time.Duration(i) * 100 * time.Millisecond
		e.cycle(at(d), d)
		copies = append(copies, append([]load.RankLoad(nil), p.got[i].ranks...))
	}
	for i := range copies {
		for r := range copies[i] {
			if copies[i][r] != p.got[i].ranks[r] {
				t.Fatalf("collection %d changed after it was handed out", i)
			}
		}
	}
}

func TestCycle_SilentRankKeepsItsSampleAndTime(t *testing.T) {
	p := &probe{}
	e := still(t, Options{Ranks: 3}, p)
	e.cycle(at(0), 0)
	rank := 1
	if err := e.disturb(Command{Action: Silence, Rank: &rank}); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < 50; i++ {
		d := time.Duration(i) * 100 * time.Millisecond
		e.cycle(at(d), d)
	}
	newest := p.got[len(p.got)-1]
	for r := range newest.ranks {
		kept := newest.ranks[r].SnapshotTimeUnixMs == p.got[0].ranks[r].SnapshotTimeUnixMs
		if kept != (r == rank) {
			t.Errorf("rank %d kept its sample: %v", r, kept)
		}
	}
	if err := e.disturb(Command{Action: Resume, Rank: &rank}); err != nil {
		t.Fatal(err)
	}
	e.cycle(at(5*time.Second), 5*time.Second)
	if r := p.got[len(p.got)-1].ranks[rank]; r.SnapshotTimeUnixMs != at(5*time.Second).UnixMilli() {
		t.Error("the rank's sample does not renew after resume")
	}
}

func TestCycle_HungEngineCollectsNothingAndResumes(t *testing.T) {
	p := &probe{}
	e := still(t, Options{Ranks: 2, Load: 1}, p)
	cycle := func(d time.Duration) { e.cycle(at(d), d) }
	cycle(0)
	cycle(10 * time.Second)
	e.disturb(Command{Action: Hang})
	n := len(p.got)
	cycle(20 * time.Second)
	cycle(30 * time.Second)
	if len(p.got) != n {
		t.Errorf("%d collections while hung", len(p.got)-n)
	}
	e.disturb(Command{Action: Resume})
	cycle(30*time.Second + 100*time.Millisecond)
	if len(p.got) != n+1 {
		t.Fatalf("%d collections after resume, want 1", len(p.got)-n)
	}
	// What arrived meanwhile waits now.
	if waiting, _ := p.got[n].ranks[0].Int(load.NumWaitingReqs); waiting == 0 {
		t.Error("nothing waits after 20 s without a scheduler")
	}
}

// Rule FR5: an engine that still starts has capacity zero, which is not idleness.
func TestCycle_StartingEngineHasNoCapacity(t *testing.T) {
	p := &probe{}
	e := still(t, Options{StartingFor: 2 * time.Second}, p)
	for _, d := range []time.Duration{0, time.Second, 1999 * time.Millisecond, 2 * time.Second} {
		e.cycle(at(d), d)
		r := p.got[len(p.got)-1].ranks[0]
		most, told := r.Int(load.MaxTotalNumTokens)
		if starting := d < 2*time.Second; !told || (most == 0) != starting {
			t.Errorf("at %v: capacity %d, told %v", d, most, told)
		}
		if got := e.conditionLocked(at(d)); (got == Starting) != (d < 2*time.Second) {
			t.Errorf("at %v: %v", d, got)
		}
	}
}
