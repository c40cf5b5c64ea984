package watch

import (
	"fmt"
	"sync"
	"testing"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

// Rule W7, case I7: watchers with the same view and base share bytes, whoever comes first and however many come at once.
func TestUpdateFrames_AreSharedByViewAndBase(t *testing.T) {
	t.Parallel()
	f := bigFleet(50)
	f.publish()
	f.report("10.9.0.7:30000", 1)
	snap := f.publish()
	svc := newService(t, Options{Source: newSource(snap)})
	ranks, bare := mustView(t, withRanks), mustView(t, loadmonitorpb.WatchRequest_builder{}.Build())

	const n = 16
	got := make([]*bundle, n)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() { got[i] = svc.updateFrames(snap, 1, ranks) })
	}
	wg.Wait()
	for i, b := range got {
		if b != got[0] {
			t.Errorf("caller %d got a bundle of its own", i)
		}
	}
	if n := svc.counters.framesEncoded.Load(); n != 1 {
		t.Errorf("%d frames were encoded for one view and base", n)
	}
	for name, other := range map[string]*bundle{
		"another view": svc.updateFrames(snap, 1, bare),
		"another base": svc.updateFrames(snap, 0, ranks),
		"a heartbeat":  svc.heartbeatFrames(snap, 1, ranks),
	} {
		if other == got[0] {
			t.Errorf("%s shares the bundle", name)
		}
	}
	if svc.updateFrames(snap, 1, mustView(t, withRanks)) != got[0] {
		t.Error("an equal view does not share the bundle")
	}
}

// Full pictures on request come from the same bytes whatever the watcher held.
func TestUpdateFrames_FullOnlySharesOnePicture(t *testing.T) {
	t.Parallel()
	f := bigFleet(50)
	f.publish()
	f.report("10.9.0.7:30000", 1)
	f.publish()
	f.report("10.9.0.7:30000", 2)
	snap := f.publish()
	svc := newService(t, Options{Source: newSource(snap)})
	v := mustView(t, loadmonitorpb.WatchRequest_builder{FullOnly: true}.Build())
	first := svc.updateFrames(snap, 0, v).frames[0]
	for base := uint64(1); base < 3; base++ {
		if b := svc.updateFrames(snap, base, v); b.empty() || b.frames[0] != first {
			t.Errorf("base %d: own bytes or empty", base)
		}
	}
	if n := svc.counters.framesEncoded.Load(); n != 1 {
		t.Errorf("%d frames were encoded", n)
	}
}

// Rule LIFE2: views are the peers' choice, so what a snapshot keeps for them is bounded.
func TestUpdateFrames_BeyondTheBoundAreNotKept(t *testing.T) {
	t.Parallel()
	f := bigFleet(20)
	snap := f.publish()
	svc := newService(t, Options{Source: newSource(snap)})
	m := snap.Memo.Get(newMemo).(*memo)
	m.bytes.Store(maxCachedBytes)
	for i := range 3 {
		v := mustView(t, filtered(loadmonitorpb.Filter_builder{Zones: []string{fmt.Sprint("z", i)}}))
		if a, b := svc.updateFrames(snap, 0, v), svc.updateFrames(snap, 0, v); a == b || len(a.frames) != 1 || len(b.frames) != 1 {
			t.Errorf("view %d was kept, or not encoded", i)
		}
	}
	if len(m.bundles) != 0 {
		t.Errorf("%d bundles are kept", len(m.bundles))
	}
}

// A filtered view is spared the look at the whole fleet for what happens outside of it.
func TestUpdateFrames_OfNothingAreNotEncoded(t *testing.T) {
	t.Parallel()
	f := bigFleet(50)
	f.publish()
	f.report("10.9.0.7:30000", 1)
	snap := f.publish()
	svc := newService(t, Options{Source: newSource(snap)})
	v := mustView(t, filtered(loadmonitorpb.Filter_builder{Ids: []string{"10.9.0.8:30000"}}))
	if b := svc.updateFrames(snap, 1, v); !b.empty() || svc.counters.framesEncoded.Load() != 0 {
		t.Errorf("%d frames were encoded", svc.counters.framesEncoded.Load())
	}
	if b := svc.advanceFrames(snap, 1, v); b.empty() || b != svc.advanceFrames(snap, 1, v) {
		t.Error("the frame that only advances is empty or not shared")
	}
}
