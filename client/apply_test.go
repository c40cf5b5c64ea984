package client

import (
	"errors"
	"strings"
	"testing"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// feed applies the frames and returns what the last one led to.
func feed(t *testing.T, f *frames, rs ...*loadmonitorpb.WatchResponse) outcome {
	t.Helper()
	var out outcome
	for i, r := range rs {
		var err error
		if out, err = f.take(r); err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
	}
	return out
}

// viewOf shows a picture as a client would.
func viewOf(p *picture) *View {
	return &View{Epoch: p.epoch, Version: p.version, State: p.state, Summary: p.summary, table: p.table, index: p.index}
}

// ids returns the ids of a picture, in its order.
func ids(p *picture) string {
	var all []string
	for w := range viewOf(p).All() {
		all = append(all, w.ID)
	}
	return strings.Join(all, " ")
}

func running(t *testing.T, p *picture, handle uint32) int64 {
	t.Helper()
	w, ok := viewOf(p).ByHandle(handle)
	if !ok {
		t.Fatalf("no worker has handle %d", handle)
	}
	n, ok := w.Aggregate.Int(load.SumRunningReqs)
	if !ok {
		t.Fatalf("worker %s does not know how many requests run", w.ID)
	}
	return n
}

// three is the full picture of three workers at version 5 of epoch e.
func three() *loadmonitorpb.WatchResponse {
	return scene{3, 3}.last(frame{Epoch: "e", View: "v", Version: 5, NowUs: 100, Changed: workers{
		aWorker(1, 10, 50), aWorker(2, 20, 50), aWorker(3, 30, 50),
	}})
}

func TestApply_UpdateShowsNothingBeforeItsLastFrame(t *testing.T) { // WATCH 1
	f := &frames{}
	for i, ws := range []workers{{aWorker(1, 10, 50)}, {aWorker(2, 20, 50)}} {
		if out := feed(t, f, frame{Epoch: "e", View: "v", Version: 5, Changed: ws}.Build()); out.picture != nil {
			t.Fatalf("frame %d shows a picture", i)
		}
	}
	out := feed(t, f, scene{3, 3}.last(frame{Epoch: "e", View: "v", Version: 5, Changed: workers{aWorker(3, 30, 50)}}))
	if out.picture == nil || !out.full || ids(out.picture) != "w00001 w00002 w00003" {
		t.Fatalf("got %+v", out)
	}
	before := out.picture
	if out := feed(t, f, frame{Epoch: "e", View: "v", BaseVersion: 5, Version: 6, Removed: []uint32{1}}.Build()); out.picture != nil {
		t.Fatal("half a delta shows a picture")
	}
	out = feed(t, f, scene{2, 2}.last(frame{Epoch: "e", View: "v", BaseVersion: 5, Version: 6, Changed: workers{aWorker(2, 21, 60)}}))
	if ids(out.picture) != "w00002 w00003" || running(t, out.picture, 2) != 21 || out.picture.version != 6 {
		t.Fatalf("got %s at version %d", ids(out.picture), out.picture.version)
	}
	if ids(before) != "w00001 w00002 w00003" || running(t, before, 2) != 20 {
		t.Fatal("the picture before has changed")
	}
}

func TestApply_EmptyFleetIsAPicture(t *testing.T) { // WATCH 5, 10; I8
	f := &frames{}
	out := feed(t, f, scene{}.last(frame{Epoch: "e", View: "v", Version: 1}))
	if out.picture == nil || out.picture.state != load.FleetNoWorkers || viewOf(out.picture).Complete() {
		t.Fatalf("got %+v", out.picture)
	}
	out = feed(t, f, scene{1, 1}.last(frame{Epoch: "e", View: "v", BaseVersion: 1, Version: 2, Changed: workers{aWorker(1, 1, 1)}}))
	if ids(out.picture) != "w00001" || out.picture.state != load.FleetReady || !viewOf(out.picture).Complete() {
		t.Fatalf("got %+v", out.picture)
	}
	out = feed(t, f, scene{}.last(frame{Epoch: "e", View: "v", BaseVersion: 2, Version: 3, Removed: []uint32{1}}))
	if ids(out.picture) != "" || out.picture.state != load.FleetNoWorkers {
		t.Fatalf("got %+v", out.picture)
	}
}

func TestApply_Deltas(t *testing.T) {
	delta := func(s scene, f frame) *loadmonitorpb.WatchResponse {
		f.Epoch, f.View = "e", "v"
		if f.BaseVersion == 0 {
			f.BaseVersion = 5
		}
		if f.Version == 0 {
			f.Version = 6
		}
		return s.last(f)
	}
	for _, tc := range []struct {
		name  string
		frame *loadmonitorpb.WatchResponse
		ids   string
		index bool // the index is kept
		run   map[uint32]int64
	}{
		{name: "one worker changes", frame: delta(scene{3, 3}, frame{Changed: workers{aWorker(2, 21, 60)}}),
			ids: "w00001 w00002 w00003", index: true, run: map[uint32]int64{1: 10, 2: 21, 3: 30}},
		{name: "base below the held version repeats what is known", frame: delta(scene{3, 3}, frame{BaseVersion: 2, Changed: workers{aWorker(1, 10, 50), aWorker(2, 21, 60)}}),
			ids: "w00001 w00002 w00003", index: true, run: map[uint32]int64{1: 10, 2: 21}},
		{name: "nothing of the view changed, only the fleet's version", frame: delta(scene{3, 3}, frame{Version: 9}),
			ids: "w00001 w00002 w00003", index: true},
		{name: "one goes", frame: delta(scene{2, 2}, frame{Removed: []uint32{2}}), ids: "w00001 w00003", run: map[uint32]int64{3: 30}},
		{name: "unknown ones go", frame: delta(scene{3, 3}, frame{Removed: []uint32{77, 78}}), ids: "w00001 w00002 w00003", index: true},
		{name: "one comes, first by id", frame: delta(scene{4, 4}, frame{Changed: workers{with(aWorker(9, 90, 60), func(w *loadmonitorpb.Worker) { w.SetId("a") })}}),
			ids: "a w00001 w00002 w00003", run: map[uint32]int64{9: 90, 1: 10, 3: 30}},
		{name: "one comes back under a new handle", frame: delta(scene{3, 3}, frame{Removed: []uint32{2}, Changed: workers{with(aWorker(9, 90, 60), func(w *loadmonitorpb.Worker) { w.SetId("w00002") })}}),
			ids: "w00001 w00002 w00003", run: map[uint32]int64{9: 90}},
		{name: "one changes and goes: it is gone", frame: delta(scene{2, 2}, frame{Removed: []uint32{2}, Changed: workers{aWorker(2, 22, 60)}}),
			ids: "w00001 w00003"},
		{name: "one comes and goes: it is gone", frame: delta(scene{3, 3}, frame{Removed: []uint32{9}, Changed: workers{aWorker(9, 22, 60)}}),
			ids: "w00001 w00002 w00003", index: true},
		{name: "one changes its URL", frame: delta(scene{3, 3}, frame{Changed: workers{with(aWorker(2, 22, 60), func(w *loadmonitorpb.Worker) { w.SetUrl("http://new:1") })}}),
			ids: "w00001 w00002 w00003", run: map[uint32]int64{2: 22}},
		{name: "one goes stale", frame: delta(scene{3, 2}, frame{Changed: workers{with(aWorker(2, 20, 50), func(w *loadmonitorpb.Worker) { w.SetFreshness(stale) })}}),
			ids: "w00001 w00002 w00003", index: true},
		{name: "a mark for an unknown handle means nothing", frame: delta(scene{3, 3}, frame{Refreshed: []uint32{99}, RefreshedUs: []uint64{70}}),
			ids: "w00001 w00002 w00003", index: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &frames{}
			before := feed(t, f, three()).picture
			out := feed(t, f, tc.frame)
			p := out.picture
			if p == nil || out.full || out.resumed {
				t.Fatalf("got %+v", out)
			}
			if got := ids(p); got != tc.ids {
				t.Errorf("workers %q: want %q", got, tc.ids)
			}
			if kept := p.index == before.index; kept != tc.index {
				t.Errorf("index kept: %t, want %t", kept, tc.index)
			}
			for h, n := range tc.run {
				if got := running(t, p, h); got != n {
					t.Errorf("handle %d runs %d: want %d", h, got, n)
				}
			}
			consistent(t, p)
			if ids(before) != "w00001 w00002 w00003" || running(t, before, 2) != 20 {
				t.Error("the picture before has changed")
			}
		})
	}
}

func TestApply_FullPictureReplacesEverything(t *testing.T) { // WATCH 2
	f := &frames{}
	before := feed(t, f, three()).picture
	out := feed(t, f, scene{2, 2}.last(frame{Epoch: "e", View: "v", Version: 8, Changed: workers{aWorker(2, 22, 60), aWorker(4, 40, 60)}}))
	if !out.full || ids(out.picture) != "w00002 w00004" {
		t.Fatalf("got %s", ids(out.picture))
	}
	consistent(t, out.picture)
	out = feed(t, f, scene{2, 2}.last(frame{Epoch: "e", View: "v", Version: 9, Changed: workers{aWorker(2, 23, 60), aWorker(4, 40, 60)}}))
	if out.picture.index == before.index || running(t, out.picture, 2) != 23 {
		t.Fatal("the full picture was not taken")
	}
	same := feed(t, f, scene{2, 2}.last(frame{Epoch: "e", View: "v", Version: 10, Changed: workers{aWorker(2, 24, 60), aWorker(4, 40, 60)}})).picture
	if same.index != out.picture.index {
		t.Error("a full picture of the same workers builds a new index")
	}
}

func TestApply_NewEpochStartsAnew(t *testing.T) { // WATCH 9
	f := &frames{}
	feed(t, f, three())
	out := feed(t, f, scene{1, 1}.last(frame{Epoch: "f", View: "v", Version: 1, Changed: workers{aWorker(3, 33, 5)}}))
	if out.picture.epoch != "f" || out.picture.version != 1 || ids(out.picture) != "w00003" {
		t.Fatalf("got %+v", out.picture)
	}
}

func TestApply_HeartbeatChangesNothing(t *testing.T) { // WATCH 4
	f := &frames{}
	held := feed(t, f, three()).picture
	out := feed(t, f, frame{Epoch: "e", View: "v", BaseVersion: 5, Version: 5, Last: true, NowUs: 200}.Build())
	if out.picture != held || out.full || out.resumed {
		t.Fatalf("got %+v", out)
	}
}

func TestApply_ResumeContinues(t *testing.T) { // W1
	held := feed(t, &frames{}, three()).picture
	for _, tc := range []struct {
		name    string
		r       *loadmonitorpb.WatchResponse
		resumed bool
		version uint64
	}{
		{"nothing changed", frame{Epoch: "e", View: "v", BaseVersion: 5, Version: 5, Last: true}.Build(), true, 5},
		{"nothing changed, summary told all the same", scene{3, 3}.last(frame{Epoch: "e", View: "v", BaseVersion: 5, Version: 5}), true, 5},
		{"something changed", scene{3, 3}.last(frame{Epoch: "e", View: "v", BaseVersion: 5, Version: 7, Changed: workers{aWorker(1, 11, 60)}}), true, 7},
		{"full picture", scene{1, 1}.last(frame{Epoch: "e", View: "v", Version: 7, Changed: workers{aWorker(1, 11, 60)}}), false, 7},
		{"full picture of another view", scene{1, 1}.last(frame{Epoch: "e", View: "u", Version: 5, Changed: workers{aWorker(1, 11, 60)}}), false, 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &frames{held: held, resumed: true}
			out := feed(t, f, tc.r)
			if out.resumed != tc.resumed || out.full == tc.resumed || out.picture.version != tc.version {
				t.Fatalf("got %+v at version %d", out, out.picture.version)
			}
			if out := feed(t, f, frame{Epoch: "e", View: tc.r.GetView(), BaseVersion: tc.version, Version: tc.version, Last: true}.Build()); out.resumed {
				t.Fatal("a later update counts as a resume")
			}
		})
	}
}

func TestApply_MarksVouchForFreshRanksOnly(t *testing.T) { // FR6, WATCH 11
	w := with(aWorker(1, 10, 50), func(w *loadmonitorpb.Worker) {
		w.SetFreshness(stale)
		w.SetRanks([]*loadmonitorpb.Rank{
			aRank(0, 5, 50), with(aRank(1, 5, 10), func(r *loadmonitorpb.Rank) { r.SetFreshness(stale) }), aRank(2, 5, 90),
		})
	})
	f := &frames{}
	feed(t, f, scene{1, 0}.last(frame{Epoch: "e", View: "v", Version: 5, Changed: workers{w}}))
	version := uint64(5)
	mark := func(us ...uint64) Worker {
		t.Helper()
		version++
		r := frame{Epoch: "e", View: "v", BaseVersion: version - 1, Version: version, RefreshedUs: us}
		for range us {
			r.Refreshed = append(r.Refreshed, 1)
		}
		got, _ := viewOf(feed(t, f, scene{1, 0}.last(r)).picture).ByHandle(1)
		return got
	}
	want := func(w Worker, ranks [3]load.Instant, oldest load.Instant) {
		t.Helper()
		if got := [3]load.Instant{w.received(0), w.received(1), w.received(2)}; got != ranks || w.oldestFresh() != oldest {
			t.Errorf("received %v, oldest %v: want %v, %v", got, w.oldestFresh(), ranks, oldest)
		}
	}
	want(mark(), [3]load.Instant{50, 10, 90}, 50)
	before := mark(70)
	want(before, [3]load.Instant{70, 10, 90}, 70)
	want(mark(60), [3]load.Instant{70, 10, 90}, 70) // never back
	want(mark(80, 95), [3]load.Instant{95, 10, 95}, 95)
	want(before, [3]load.Instant{70, 10, 90}, 70) // a kept view stays

	// Whole workers come before the marks of their update, and end those of earlier ones.
	version++
	r := scene{1, 0}.last(frame{Epoch: "e", View: "v", BaseVersion: version - 1, Version: version, Changed: workers{w}, Refreshed: []uint32{1}, RefreshedUs: []uint64{55}})
	got, _ := viewOf(feed(t, f, r).picture).ByHandle(1)
	want(got, [3]load.Instant{55, 10, 90}, 55)

	// In full pictures too.
	r = scene{1, 0}.last(frame{Epoch: "e", View: "v", Version: version + 1, Changed: workers{w}, Refreshed: []uint32{1}, RefreshedUs: []uint64{57}})
	got, _ = viewOf(feed(t, f, r).picture).ByHandle(1)
	want(got, [3]load.Instant{57, 10, 90}, 57)
}

func TestApply_MarkDoesNotInventAFreshRank(t *testing.T) {
	w := with(aWorker(1, 10, 0), func(w *loadmonitorpb.Worker) {
		w.SetFreshness(stale)
		w.SetRanks([]*loadmonitorpb.Rank{with(aRank(0, 5, 40), func(r *loadmonitorpb.Rank) { r.SetFreshness(stale) })})
	})
	r := scene{1, 0}.last(frame{Epoch: "e", View: "v", Version: 5, Changed: workers{w}, Refreshed: []uint32{1}, RefreshedUs: []uint64{70}})
	got, _ := viewOf(feed(t, &frames{}, r).picture).ByHandle(1)
	if got.oldestFresh() != 0 || got.received(0) != 40 {
		t.Errorf("oldest fresh %v, rank %v: want 0, 40", got.oldestFresh(), got.received(0))
	}
}

func TestApply_BrokenContractIsNoticed(t *testing.T) {
	heartbeat := frame{Epoch: "e", View: "v", BaseVersion: 5, Version: 5, Last: true}
	next := func(change func(*frame)) []*loadmonitorpb.WatchResponse {
		f := frame{Epoch: "e", View: "v", BaseVersion: 5, Version: 6, Summary: summaryOf(3, 3), Last: true}
		change(&f)
		return []*loadmonitorpb.WatchResponse{three(), f.Build()}
	}
	firstHalf := frame{Epoch: "e", View: "v", BaseVersion: 5, Version: 6, Removed: []uint32{1}}.Build()
	for _, tc := range []struct {
		name   string
		frames []*loadmonitorpb.WatchResponse // the last one breaks it
		want   string
	}{
		{"no epoch", next(func(f *frame) { f.Epoch = "" }), "without an epoch"},
		{"version 0", next(func(f *frame) { f.BaseVersion, f.Version = 0, 0 }), "version 0"},
		{"base above version", next(func(f *frame) { f.BaseVersion = 7 }), "above version"},
		{"base above held", next(func(f *frame) { f.BaseVersion, f.Version = 6, 7 }), "above the held version 5"},
		{"version goes back", next(func(f *frame) { f.BaseVersion, f.Version = 3, 4 }), "went back from 5 to 4"},
		{"full picture goes back", next(func(f *frame) { f.BaseVersion, f.Version, f.Summary = 0, 4, summaryOf(0, 0) }), "went back from 5 to 4"},
		{"delta before any picture", next(func(f *frame) {})[1:], "want 0"},
		{"delta of another epoch", next(func(f *frame) { f.Epoch = "f" }), "first update of epoch"},
		{"view changes", next(func(f *frame) { f.View = "u" }), "view changed"},
		{"marks without times", next(func(f *frame) { f.Refreshed = []uint32{1, 2}; f.RefreshedUs = []uint64{1} }), "2 refreshed handles with 1 times"},
		{"epoch changes within an update", []*loadmonitorpb.WatchResponse{three(), firstHalf, frame{Epoch: "f", View: "v", Version: 1}.Build()}, "is not complete"},
		{"version changes within an update", []*loadmonitorpb.WatchResponse{three(), firstHalf, frame{Epoch: "e", View: "v", BaseVersion: 5, Version: 7, Last: true}.Build()}, "is not complete"},
		{"base changes within an update", []*loadmonitorpb.WatchResponse{three(), firstHalf, frame{Epoch: "e", View: "v", BaseVersion: 4, Version: 6, Last: true}.Build()}, "is not complete"},
		{"heartbeat within an update", []*loadmonitorpb.WatchResponse{three(), firstHalf, heartbeat.Build()}, "is not complete"},
		{"content without a version of its own", next(func(f *frame) { f.Version = 5; f.Removed = []uint32{1} }), "content of its own"},
		{"no summary", next(func(f *frame) { f.Summary = nil }), "no summary"},
		{"summary counts others", next(func(f *frame) { f.Summary = summaryOf(4, 3) }), "counts 4 workers"},
		{"summary counts other fresh ones", next(func(f *frame) { f.Summary = summaryOf(3, 2) }), "2 fresh"},
		{"summary contradicts itself", next(func(f *frame) {
			f.Summary = with(summaryOf(3, 3), func(s *loadmonitorpb.Summary) { s.SetComplete(false) })
		}), "complete is false"},
		{"handle stands for another worker", next(func(f *frame) {
			f.Changed = workers{with(aWorker(2, 1, 1), func(w *loadmonitorpb.Worker) { w.SetId("x") })}
		}), "handle 2 stood for"},
		{"two workers with one id", next(func(f *frame) {
			f.Changed = workers{with(aWorker(9, 1, 1), func(w *loadmonitorpb.Worker) { w.SetId("w00002") })}
		}), `id "w00002"`},
		{"two new workers with one handle", next(func(f *frame) {
			f.Changed = workers{aWorker(9, 1, 1), with(aWorker(9, 1, 1), func(w *loadmonitorpb.Worker) { w.SetId("x") })}
		}), "handle 9"},
		{"worker without id", next(func(f *frame) {
			f.Changed = workers{with(aWorker(9, 1, 1), func(w *loadmonitorpb.Worker) { w.SetId("") })}
		}), "no id"},
		{"full picture not sorted", next(func(f *frame) {
			f.BaseVersion, f.Changed = 0, workers{aWorker(2, 1, 1), aWorker(1, 1, 1)}
		}), "not sorted"},
		{"full picture with one worker twice", next(func(f *frame) {
			f.BaseVersion, f.Changed = 0, workers{aWorker(2, 1, 1), aWorker(2, 1, 1)}
		}), "not sorted"},
		{"full picture with two workers of one handle", next(func(f *frame) {
			f.BaseVersion, f.Changed = 0, workers{aWorker(2, 1, 1), with(aWorker(2, 1, 1), func(w *loadmonitorpb.Worker) { w.SetId("x") })}
		}), "handle 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &frames{}
			end := len(tc.frames) - 1
			feed(t, f, tc.frames[:end]...)
			held := f.held
			_, err := f.take(tc.frames[end])
			if !errors.Is(err, ErrContract) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v: want one that says %q", err, tc.want)
			}
			if f.held != held {
				t.Error("what is held has changed")
			}
		})
	}
}

func TestApply_StreamWithoutResumeMustBeginWithAFullPicture(t *testing.T) {
	held := feed(t, &frames{}, three()).picture
	delta := frame{Epoch: "e", View: "v", BaseVersion: 5, Version: 5, Last: true}
	if _, err := (&frames{held: held}).take(delta.Build()); !errors.Is(err, ErrContract) {
		t.Errorf("not resumed: %v", err)
	}
	delta.View = "u"
	if _, err := (&frames{held: held, resumed: true}).take(delta.Build()); !errors.Is(err, ErrContract) {
		t.Errorf("resumed under another view: %v", err)
	}
}

// consistent checks what must hold for every picture, however it came about.
func consistent(t *testing.T, p *picture) {
	t.Helper()
	v := viewOf(p)
	var tally load.Summary
	last, n := "", 0
	for w := range v.All() {
		if n > 0 && w.ID <= last {
			t.Errorf("%q stands after %q", w.ID, last)
		}
		last = w.ID
		n++
		tally.Add(w.Freshness, 1)
		if got, ok := v.Worker(w.ID); !ok || got != w {
			t.Errorf("Worker(%q) finds %+v", w.ID, got)
		}
		if got, ok := v.ByHandle(w.Handle); !ok || got != w {
			t.Errorf("ByHandle(%d) finds %+v", w.Handle, got)
		}
		if got, ok := v.ByURL(w.URL); !ok || got.URL != w.URL {
			t.Errorf("ByURL(%q) finds %+v", w.URL, got)
		}
	}
	if n != v.Len() || tally != p.tally || len(p.index.byID) != n {
		t.Errorf("%d workers, tally %+v, %d in the index: want %d, %+v", v.Len(), p.tally, len(p.index.byID), n, tally)
	}
}
