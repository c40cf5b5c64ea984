package watch

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

func TestWatch_RefusesTooManyBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		svc := newService(t, Options{Source: newSource(f.publish()), MaxWatchers: 3})
		c := serve(t, svc)
		var open []*collected
		for range 3 {
			open = append(open, watch(t, c, withRanks))
		}
		synctest.Wait()
		for range 2 {
			w := watch(t, c, withRanks)
			wantStatus(t, w.ended(t), codes.ResourceExhausted, load.ErrTooManyWatchers.Error())
			wantShapes(t, w.news())
		}
		// The place of one that goes is free again.
		open[0].cancel()
		synctest.Wait()
		w := watch(t, c, withRanks)
		synctest.Wait()
		wantShapes(t, w.news(), shape{0, 1, 0, 0, 0, true, true})
		wantMetrics(t, svc, map[string]float64{"watchers": 3, "watchers_refused_total": 2})
	})
}

func TestWatch_RefusesABadFilter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t, Options{Source: newSource(newFleet().publish()), MaxFilterValues: 2})
		w := watch(t, serve(t, svc), filtered(loadmonitorpb.Filter_builder{Zones: []string{"a", "b", "c"}}))
		wantStatus(t, w.ended(t), codes.InvalidArgument, "filter.zones has 3 values: at most 2")
	})
}

// Rule LIFE1.
func TestWatch_ShutdownTellsEveryWatcher(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		svc := newService(t, Options{Source: newSource(f.publish())})
		c := serve(t, svc)
		var all []*collected
		for range 10 {
			all = append(all, watch(t, c, withRanks))
		}
		synctest.Wait()
		svc.Shutdown()
		svc.Shutdown()
		for _, w := range append(all, watch(t, c, withRanks)) {
			wantStatus(t, w.ended(t), codes.Unavailable, load.ErrShuttingDown.Error())
		}
		if _, err := c.GetSnapshot(t.Context(), &loadmonitorpb.GetSnapshotRequest{}); err != nil {
			t.Errorf("a snapshot during the shutdown: %v", err)
		}
	})
}

// Case I3: watchers that leave while nothing changes leave nothing behind. The bubble ends only when no goroutine of it
// is left.
func TestWatch_LeavesNothingBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.report("a", 1)
		svc := newService(t, Options{Source: newSource(f.publish())})
		c := serve(t, svc)
		for i := range 200 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%3)*time.Second)
			stream, err := c.Watch(ctx, withRanks)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				cancel()
			} else {
				t.Cleanup(cancel) // the deadline ends it
			}
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		wantMetrics(t, svc, map[string]float64{"watchers": 0, "watchers_stuck_total": 0})
	})
}

// Case I8: whenever a watcher comes, it gets a first picture and never misses the final state.
func TestWatch_NeverMissesTheFinalState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		src := newSource(f.publish())
		c := serve(t, newService(t, Options{Source: src}))
		for round := range 100 {
			steps := []func(){
				func() { f.report("w", 1) }, func() { f.remove("w") }, func() { f.report("x", 1) }, func() { f.remove("x") },
				func() { f.report("y", int64(round)) },
			}
			var w *collected
			for i, act := range steps {
				if i == round%len(steps) {
					w = watch(t, c, withRanks)
				}
				act()
				src.publish(f.publish())
			}
			synctest.Wait()
			w.see(func(r *receiver) {
				if r.version != f.version || len(r.workers) != 1 || r.byID("y").GetAggregate().GetNumRunningReqs() != int64(round) {
					t.Fatalf("round %d: version %d of %d, workers %v", round, r.version, f.version, r.workers)
				}
			})
			w.cancel()
			f.remove("y")
			src.publish(f.publish())
		}
	})
}

func wantMetrics(t *testing.T, s *Service, want map[string]float64) {
	t.Helper()
	seen := make(map[string]float64)
	for _, m := range s.Metrics() {
		m.Collect(func(v float64, labels ...load.Label) { seen[m.Name] = v })
	}
	for name, v := range want {
		if got, ok := seen[name]; !ok || got != v {
			t.Errorf("%s is %v, want %v", name, got, v)
		}
	}
}

func TestMetrics_CountWhatIsEncodedAndWhatIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		for i := range 10 {
			f.report(fmt.Sprint("w", i), 1)
		}
		src := newSource(f.publish())
		svc := newService(t, Options{Source: src})
		c := serve(t, svc)
		var all []*collected
		for range 8 {
			all = append(all, watch(t, c, withRanks))
		}
		synctest.Wait()
		f.report("w3", 2)
		src.publish(f.publish())
		synctest.Wait()
		for _, w := range all {
			if w.holds() != 2 {
				t.Errorf("a watcher holds version %d", w.holds())
			}
		}
		wantMetrics(t, svc, map[string]float64{
			"watchers": 8, "watch_frames_sent_total": 16, "watch_frames_encoded_total": 2, "watch_frame_cache_hits_total": 14,
		})
	})
}

func TestNew_RefusesOptionsThatCannotWork(t *testing.T) {
	t.Parallel()
	src := newSource(newFleet().publish())
	for _, o := range []Options{
		{}, {Source: src, Heartbeat: -1}, {Source: src, SendTimeout: time.Microsecond}, {Source: src, MaxWatchers: -1},
		{Source: src, MaxFrameBytes: 10}, {Source: src, MaxFilterValues: -1}, {Source: src, PageLifetime: -1}, {Source: src, MaxInterval: -1},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}
