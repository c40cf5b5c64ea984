package watch

import (
	"testing"
	"testing/synctest"
	"time"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

var withRanks = loadmonitorpb.WatchRequest_builder{Ranks: true}.Build()

// shape is what tells frames apart: from which version to which, and how much is in them.
type shape struct {
	base, version           uint64
	changed, removed, marks int
	last, summary           bool
}

func shapeOf(m *loadmonitorpb.WatchResponse) shape {
	return shape{
		m.GetBaseVersion(), m.GetVersion(), len(m.GetChanged()), len(m.GetRemoved()), len(m.GetRefreshed()), m.GetLast(), m.HasSummary(),
	}
}

func wantShapes(t *testing.T, got []arrival, want ...shape) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d frames arrived, want %d: %v", len(got), len(want), got)
		return
	}
	for i := range want {
		if s := shapeOf(got[i].WatchResponse); s != want[i] {
			t.Errorf("frame %d is %+v, want %+v", i, s, want[i])
		}
	}
}

// Rule W1, case I8: the first frame comes at once and says why the list is empty.
func TestWatch_FirstFrameComesAtOnceEvenWhenEmpty(t *testing.T) {
	t.Parallel()
	warming := newFleet()
	none := newFleet()
	none.setState(load.FleetNoWorkers)
	for _, tc := range []struct {
		name string
		f    *fleet
		want loadmonitorpb.FleetState
	}{
		{"warming up", warming, loadmonitorpb.FleetState_FLEET_STATE_WARMING_UP},
		{"no workers", none, loadmonitorpb.FleetState_FLEET_STATE_NO_WORKERS},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				svc := newService(t, Options{Source: newSource(tc.f.publish())})
				begun := time.Now()
				w := watch(t, serve(t, svc), withRanks)
				synctest.Wait()
				got := w.news()
				wantShapes(t, got, shape{0, 1, 0, 0, 0, true, true})
				if len(got) == 1 && (got[0].GetSummary().GetState() != tc.want || !got[0].at.Equal(begun)) {
					t.Errorf("state %v after %v", got[0].GetSummary().GetState(), got[0].at.Sub(begun))
				}
			})
		})
	}
}

func TestWatch_SendsWhatChangesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.report("a", 1)
		f.report("b", 1)
		src := newSource(f.publish())
		w := watch(t, serve(t, newService(t, Options{Source: src})), withRanks)
		synctest.Wait()
		wantShapes(t, w.news(), shape{0, 1, 2, 0, 0, true, true})
		for _, change := range []struct {
			act  func()
			want shape
		}{
			{func() { f.report("a", 7) }, shape{1, 2, 1, 0, 0, true, true}},
			{func() { f.remove("b") }, shape{2, 3, 0, 1, 0, true, true}},
			{func() { f.refresh("a") }, shape{3, 4, 0, 0, 1, true, true}},
			{func() { f.report("c", 1); f.refresh("a") }, shape{4, 5, 1, 0, 1, true, true}},
			{func() { f.remove("a"); f.remove("c") }, shape{5, 6, 0, 2, 0, true, true}},
		} {
			change.act()
			published := time.Now()
			src.publish(f.publish())
			synctest.Wait()
			got := w.news()
			wantShapes(t, got, change.want)
			if len(got) == 1 && !got[0].at.Equal(published) {
				t.Errorf("arrived %v late", got[0].at.Sub(published))
			}
		}
		w.see(func(r *receiver) {
			if len(r.workers) != 0 || r.summary.GetState() != loadmonitorpb.FleetState_FLEET_STATE_NO_WORKERS {
				t.Errorf("case I8: removal to zero was not delivered: %v %v", r.workers, r.summary)
			}
		})
	})
}

// Rule W4: heartbeats are the publisher's. They say which version the watcher holds and nothing else.
func TestWatch_HeartbeatsWhenNothingChangesAndStopWithThePublisher(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.report("a", 1)
		src := newSource(f.publish())
		w := watch(t, serve(t, newService(t, Options{Source: src})), withRanks)
		stop := src.beats(time.Second)
		time.Sleep(5*time.Second + time.Millisecond)
		beat := shape{1, 1, 0, 0, 0, true, false}
		got := w.news()
		wantShapes(t, got, shape{0, 1, 1, 0, 0, true, true}, beat, beat, beat, beat)
		for i := 1; i < len(got); i++ {
			if d := got[i].at.Sub(got[i-1].at); d > 2*time.Second {
				t.Errorf("silence of %v", d)
			}
		}
		// A change takes the place of a heartbeat.
		f.report("a", 2)
		src.publish(f.publish())
		time.Sleep(2 * time.Second)
		wantShapes(t, w.news(), shape{1, 2, 1, 0, 0, true, true}, shape{2, 2, 0, 0, 0, true, false})
		stop()
		time.Sleep(time.Hour)
		wantShapes(t, w.news())
	})
}

// An update that holds nothing for the view is not worth a frame of its own; the next heartbeat carries its version.
func TestWatch_VersionsWithoutContentRideOnTheHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.report("a", 1)
		f.report("b", 1)
		src := newSource(f.publish())
		c := serve(t, newService(t, Options{Source: src}))
		filter := watch(t, c, filtered(loadmonitorpb.Filter_builder{Ids: []string{"a"}}))
		unmarked := watch(t, c, loadmonitorpb.WatchRequest_builder{NoRefreshMarks: true}.Build())
		full := watch(t, c, loadmonitorpb.WatchRequest_builder{FullOnly: true, NoRefreshMarks: true}.Build())
		synctest.Wait()
		wantShapes(t, filter.news(), shape{0, 1, 1, 0, 0, true, true})
		wantShapes(t, unmarked.news(), shape{0, 1, 2, 0, 0, true, true})
		wantShapes(t, full.news(), shape{0, 1, 2, 0, 0, true, true})
		src.beat()
		for range 20 {
			f.refresh("b")
			time.Sleep(10 * time.Millisecond)
			src.publish(f.publish())
		}
		synctest.Wait()
		wantShapes(t, filter.news())
		wantShapes(t, unmarked.news())
		wantShapes(t, full.news())
		src.beat()
		synctest.Wait()
		wantShapes(t, filter.news(), shape{1, 21, 0, 0, 0, true, true})
		wantShapes(t, unmarked.news(), shape{1, 21, 0, 0, 0, true, true})
		wantShapes(t, full.news(), shape{0, 21, 2, 0, 0, true, true})
		src.beat()
		synctest.Wait()
		wantShapes(t, filter.news(), shape{21, 21, 0, 0, 0, true, false})
		// The state of the fleet is content in every view.
		f.setState(load.FleetWarmingUp)
		src.publish(f.publish())
		synctest.Wait()
		wantShapes(t, filter.news(), shape{21, 22, 0, 0, 0, true, true})
	})
}

func TestWatch_ResumeContinuesOrStartsAnew(t *testing.T) {
	t.Parallel()
	other := mustView(t, loadmonitorpb.WatchRequest_builder{}.Build()).name
	same := mustView(t, withRanks).name
	for _, tc := range []struct {
		name          string
		epoch         string
		version       uint64
		view          string
		fullOnly      bool
		minIntervalMs uint32
		want          shape
	}{
		{"nothing missed", "epoch-1", 4, same, false, 0, shape{4, 4, 0, 0, 0, true, false}},
		{"some missed", "epoch-1", 3, same, false, 0, shape{3, 4, 1, 0, 0, true, true}},
		{"with another interval", "epoch-1", 3, same, false, 500, shape{3, 4, 1, 0, 0, true, true}},
		{"as far back as removals go", "epoch-1", 2, same, false, 0, shape{2, 4, 1, 1, 0, true, true}},
		{"older than that", "epoch-1", 1, same, false, 0, shape{0, 4, 3, 0, 0, true, true}},
		{"of another epoch", "epoch-0", 4, same, false, 0, shape{0, 4, 3, 0, 0, true, true}},
		{"of another view", "epoch-1", 4, other, false, 0, shape{0, 4, 3, 0, 0, true, true}},
		{"ahead", "epoch-1", 9, same, false, 0, shape{0, 4, 3, 0, 0, true, true}},
		{"empty", "", 0, "", false, 0, shape{0, 4, 3, 0, 0, true, true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet()
				f.remembers = 1
				for _, id := range []string{"a", "b", "c", "d", "e"} {
					f.report(id, 1)
				}
				f.publish()
				f.remove("e")
				f.publish()
				f.remove("d")
				f.publish()
				f.report("a", 2)
				src := newSource(f.publish())
				req := loadmonitorpb.WatchRequest_builder{
					Ranks: true, FullOnly: tc.fullOnly, MinIntervalMs: tc.minIntervalMs,
					Resume: loadmonitorpb.Resume_builder{Epoch: tc.epoch, Version: tc.version, View: tc.view}.Build(),
				}.Build()
				w := open(t, serve(t, newService(t, Options{Source: src})), req)
				m, err := w.stream.Recv()
				if err != nil {
					t.Fatal(err)
				}
				wantShapes(t, []arrival{{m, time.Time{}}}, tc.want)
			})
		})
	}
}

func TestWatch_FullOnlySendsFullPictures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.report("a", 1)
		f.report("b", 1)
		src := newSource(f.publish())
		w := watch(t, serve(t, newService(t, Options{Source: src})), loadmonitorpb.WatchRequest_builder{FullOnly: true}.Build())
		synctest.Wait()
		f.report("a", 2)
		src.publish(f.publish())
		synctest.Wait()
		f.refresh("b")
		src.publish(f.publish())
		synctest.Wait()
		wantShapes(t, w.news(), shape{0, 1, 2, 0, 0, true, true}, shape{0, 2, 2, 0, 0, true, true}, shape{0, 3, 2, 0, 1, true, true})
	})
}

// Rule W5: the interval holds between updates, not for heartbeats, and what comes after it is the newest version.
func TestWatch_MinIntervalConflatesUpdatesAndSparesHeartbeats(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		asked uint32
		want  time.Duration
	}{
		{"within the bounds", 300, 300 * time.Millisecond},
		{"several beats long", 4500, 4500 * time.Millisecond},
		{"beyond the bound", 3_600_000, 10 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet()
				f.report("a", 1)
				src := newSource(f.publish())
				svc := newService(t, Options{Source: src, MaxInterval: 10 * time.Second})
				w := watch(t, serve(t, svc), loadmonitorpb.WatchRequest_builder{Ranks: true, MinIntervalMs: tc.asked}.Build())
				defer src.beats(time.Second)()
				synctest.Wait()
				first := w.news()
				for n := range int64(4500) {
					time.Sleep(5 * time.Millisecond)
					f.report("a", n)
					src.publish(f.publish())
				}
				var updated, any time.Time = first[0].at, first[0].at
				updates, beats := 0, 0
				for _, a := range w.news() {
					if d := a.at.Sub(any); d > 2*time.Second {
						t.Errorf("silence of %v", d)
					}
					any = a.at
					if !a.HasSummary() {
						beats++
						continue
					}
					updates++
					if d := a.at.Sub(updated); d < tc.want || d > tc.want+10*time.Millisecond {
						t.Errorf("update %v after the one before, want %v", d, tc.want)
					}
					if behind := time.Duration(f.version-a.GetVersion()) * 5 * time.Millisecond; a.at.Add(behind+10*time.Millisecond).Before(time.Now()) || a.GetVersion() == 0 {
						t.Errorf("update to version %d is not the newest at %v", a.GetVersion(), a.at)
					}
					updated = a.at
				}
				if want := int(22500 * time.Millisecond / tc.want); updates < want-1 || updates > want {
					t.Errorf("%d updates, want about %d", updates, want)
				}
				if tc.want > 2*time.Second && beats < 15 {
					t.Errorf("%d heartbeats in 22 s", beats)
				}
			})
		})
	}
}
