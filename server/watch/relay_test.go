package watch

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// sendCost is what a send costs as far as the pace of these tests knows. Time in a bubble does not pass while code runs, so
// nothing is measured, and what is observed instead must be put right again and again.
const sendCost = 2 * time.Millisecond

// pacedFleet is a fleet of one worker with 50 watchers, which have their first picture, and an interval of 100 ms.
func pacedFleet(t *testing.T) (f *fleet, src *source, svc *Service, watchers []*collected) {
	f = newFleet()
	f.report("a", 1)
	src = newSource(f.publish())
	svc = newService(t, Options{Source: src})
	svc.pace.cost.Store(int64(sendCost))
	c := serve(t, svc)
	for range 50 {
		watchers = append(watchers, watch(t, c, withRanks))
	}
	synctest.Wait()
	svc.pace.cpus.Store(2)
	return f, src, svc, watchers
}

// Rule W8, case I7: many watchers are not woken at once, and each gets the newest version within the interval.
func TestRelay_SpreadsWatchersOverTheInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, src, svc, watchers := pacedFleet(t)
		for round := range 3 {
			time.Sleep(time.Second)
			for _, w := range watchers {
				w.news()
			}
			svc.pace.cost.Store(int64(sendCost))
			interval := svc.pace.interval()
			if interval != 100*time.Millisecond {
				t.Fatalf("interval %v", interval)
			}
			f.report("a", int64(round))
			published := time.Now()
			src.publish(f.publish())
			synctest.Wait()
			svc.pace.cost.Store(int64(sendCost))
			time.Sleep(interval)
			synctest.Wait()
			slots := make(map[time.Duration]int)
			for _, w := range watchers {
				got := w.news()
				wantShapes(t, got, shape{f.version - 1, f.version, 1, 0, 0, true, true})
				if len(got) == 1 {
					slots[got[0].at.Sub(published)/(10*time.Millisecond)]++
				}
			}
			for slot, n := range slots {
				if n > 8 {
					t.Errorf("%d of 50 watchers were served within 10 ms, at +%v", n, slot*10*time.Millisecond)
				}
			}
		}
	})
}

// Rules W7 and W8: under load a round takes a few encodings, however many groups it has, and each watcher ends at the newest.
func TestRelay_GroupsShareFrames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, src, svc, watchers := pacedFleet(t)
		time.Sleep(time.Second)
		encoded := svc.counters.framesEncoded.Load()
		const rounds = 10
		for i := range rounds * 20 { // an interval is 100 ms
			svc.pace.cost.Store(int64(sendCost))
			f.report("a", int64(i))
			src.publish(f.publish())
			time.Sleep(5 * time.Millisecond)
		}
		if got := svc.counters.framesEncoded.Load() - encoded; got < rounds || got > (rounds+2)*phases {
			t.Errorf("%d encodings in %d rounds of %d phases", got, rounds, phases)
		}
		for range 10 {
			svc.pace.cost.Store(int64(sendCost))
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		for i, w := range watchers {
			got := w.news()
			if last := got[len(got)-1]; last.GetVersion() != f.version {
				t.Errorf("watcher %d ends at version %d, want %d", i, last.GetVersion(), f.version)
			}
		}
	})
}

// However publications, openings and waits fall, nobody waits on past what is newest.
func TestRelay_NobodyMissesThePublication(t *testing.T) {
	t.Parallel()
	f := newFleet()
	src := newSource(f.publish())
	p := &pace{}
	p.cpus.Store(2)
	p.watchers.Store(1)
	p.cost.Store(int64(2 * time.Millisecond))
	r := &relay{source: src, pace: p}
	const last = 200
	var wg sync.WaitGroup
	for range 20 {
		g := r.join()
		wg.Go(func() {
			defer r.leave()
			for {
				open := g.enter()
				if src.Current().Snapshot.Version == last {
					g.leave()
					return
				}
				<-open
				g.leave()
			}
		})
	}
	for f.version < last {
		src.publish(f.publish())
	}
	wg.Wait()
}

// A relay without watchers runs no goroutine; one that gets some again does.
func TestRelay_RunsWhileThereAreWatchers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		src := newSource(f.publish())
		p := &pace{}
		p.cpus.Store(2)
		p.watchers.Store(1)
		p.cost.Store(int64(time.Hour)) // stopped in the middle of a round
		r := &relay{source: src, pace: p}
		for range 3 {
			g := r.join()
			r.join()
			var opened atomic.Bool
			go func() {
				<-g.enter()
				g.leave()
				opened.Store(true)
			}()
			synctest.Wait()
			src.publish(f.publish())
			time.Sleep(2 * time.Hour)
			synctest.Wait()
			if !opened.Load() {
				t.Error("the gate stayed closed")
			}
			r.leave()
			r.leave()
		}
	})
}

// slowSource stands still once, in the second look that is taken at it.
type slowSource struct {
	*source
	looks int
}

func (s *slowSource) Current() *load.Publication {
	if s.looks++; s.looks == 2 {
		time.Sleep(80 * time.Millisecond)
	}
	return s.source.Current()
}

// Rule W8: after a stall the groups that are late are not all let through at once.
func TestRelay_DoesNotHurryAfterAStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := &pace{}
		p.cpus.Store(1)
		p.watchers.Store(100)
		p.cost.Store(int64(time.Millisecond / 2)) // an interval of 100 ms, 66 steps
		r := &relay{source: &slowSource{source: newSource(f.publish())}, pace: p}
		var opened sync.Map
		start := time.Now()
		for i := range len(r.gates) {
			g := r.join()
			go func() {
				<-g.enter()
				g.leave()
				opened.Store(i, time.Since(start))
				r.leave()
			}()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		perStep := make(map[time.Duration]int)
		opened.Range(func(_, at any) bool {
			perStep[at.(time.Duration)/time.Millisecond]++
			return true
		})
		gates := 0
		for ms, n := range perStep {
			gates += n
			if n > 2*(len(r.gates)/66+1) {
				t.Errorf("%d of %d gates opened within the millisecond %d", n, len(r.gates), ms)
			}
		}
		if gates != len(r.gates) {
			t.Errorf("%d of %d gates opened", gates, len(r.gates))
		}
	})
}

// A gate at which nobody waits costs nothing to open.
func TestGate_OpensOnlyForThoseWhoWait(t *testing.T) {
	t.Parallel()
	var g gate
	g.open()
	a, b := g.enter(), g.enter()
	if a != b {
		t.Error("two who wait have two channels")
	}
	g.open()
	<-a
	if c := g.enter(); c == a {
		t.Error("an open gate lets later ones through at once")
	}
	for range 3 {
		g.leave()
	}
	if g.open(); g.next.Load() == nil {
		t.Error("opened for nobody")
	}
}
