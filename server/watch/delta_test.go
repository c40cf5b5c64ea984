package watch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

func mustView(t testing.TB, req *loadmonitorpb.WatchRequest) *view {
	t.Helper()
	v, err := newView(req, 1024)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// apply lets a receiver take the update, split at maxBytes, and checks each frame's size.
func apply(t testing.TB, r *receiver, s *load.Snapshot, base uint64, v *view, maxBytes int) {
	t.Helper()
	u := delta(s, base, v)
	for _, b := range encodeUpdate(s, &u, v, v.summary(s), 1000, maxBytes) {
		b = newFrame(share([][]byte{b})[0], s.Captured, nil).buffers().Materialize()
		if len(b) > maxBytes {
			t.Errorf("rule W6: frame of %d bytes where %d are allowed", len(b), maxBytes)
		}
		m := &loadmonitorpb.WatchResponse{}
		if err := proto.Unmarshal(b, m); err != nil {
			t.Fatal(err)
		}
		if len(m.ProtoReflect().GetUnknown()) > 0 {
			t.Fatalf("frame has unknown fields: %v", m)
		}
		if err := r.take(m); err != nil {
			t.Fatalf("receiver: %v", err)
		}
	}
}

// sameView compares what two receivers hold.
func sameView(a, b *receiver) string {
	if slices.EqualFunc(a.sorted(), b.sorted(), func(x, y *loadmonitorpb.Worker) bool { return proto.Equal(x, y) }) &&
		proto.Equal(a.summary, b.summary) {
		return "" // much faster than finding no difference below
	}
	return cmp.Diff(a.sorted(), b.sorted(), protocmp.Transform()) + cmp.Diff(a.summary, b.summary, protocmp.Transform())
}

func names(es []*load.Entry) []string {
	var ids []string
	for _, e := range es {
		ids = append(ids, e.Worker.ID)
	}
	return ids
}

func TestDelta_HoldsWhatChangedSinceTheBase(t *testing.T) {
	t.Parallel()
	prefill := &loadmonitorpb.WatchRequest{}
	prefill.SetFilter(loadmonitorpb.Filter_builder{Roles: []loadmonitorpb.Role{loadmonitorpb.Role_ROLE_PREFILL}}.Build())
	unmarked := loadmonitorpb.WatchRequest_builder{NoRefreshMarks: true}.Build()
	setRole := func(r load.Role) func(*load.WorkerStatus) {
		return func(ws *load.WorkerStatus) { ws.Worker.Role = r }
	}
	for _, tc := range []struct {
		name    string
		req     *loadmonitorpb.WatchRequest
		act     func(f *fleet) // after a, b (regular) and c (prefill) were published
		changed []string
		removed []uint32
		marks   []uint32
		empty   bool
	}{
		{name: "nothing", act: func(*fleet) {}, empty: true},
		{name: "a report", act: func(f *fleet) { f.report("a", 5) }, changed: []string{"a"}},
		{name: "a worker more", act: func(f *fleet) { f.report("d", 5) }, changed: []string{"d"}},
		{name: "a worker less", act: func(f *fleet) { f.remove("a") }, removed: []uint32{1}},
		{name: "come and gone", act: func(f *fleet) { f.report("d", 5); f.publish(); f.remove("d") }, removed: []uint32{4}},
		{name: "gone and back", act: func(f *fleet) { f.remove("a"); f.publish(); f.report("a", 5) }, changed: []string{"a"}, removed: []uint32{1}},
		{name: "a refresh", act: func(f *fleet) { f.refresh("b") }, marks: []uint32{2}},
		{name: "a report and then a refresh", act: func(f *fleet) { f.report("b", 5); f.publish(); f.refresh("b") }, changed: []string{"b"}, marks: []uint32{2}},
		{name: "a refresh and then a report", act: func(f *fleet) { f.refresh("b"); f.publish(); f.report("b", 5) }, changed: []string{"b"}},
		{name: "a refresh of a worker without fresh ranks", act: func(f *fleet) { f.expire("b"); f.publish(); f.refresh("b") }, changed: []string{"b"}},
		{name: "marks declined", req: unmarked, act: func(f *fleet) { f.refresh("b") }, empty: true},
		{name: "all gone", act: func(f *fleet) { f.remove("a"); f.remove("b"); f.remove("c") }, removed: []uint32{3, 2, 1}},
		{name: "fleet state alone", act: func(f *fleet) { f.setState(load.FleetNoWorkers) }},
		{name: "outside the filter", req: prefill, act: func(f *fleet) { f.report("a", 5); f.refresh("b") }, empty: true},
		{name: "inside the filter", req: prefill, act: func(f *fleet) { f.report("c", 5) }, changed: []string{"c"}},
		{name: "leaving the filter", req: prefill, act: func(f *fleet) { f.put("c", setRole(load.RoleDecode)) }, removed: []uint32{3}},
		{name: "entering the filter", req: prefill, act: func(f *fleet) { f.put("a", setRole(load.RolePrefill)) }, changed: []string{"a"}},
		{name: "leaving and entering again", req: prefill, act: func(f *fleet) {
			f.put("c", setRole(load.RoleDecode))
			f.publish()
			f.put("c", setRole(load.RolePrefill))
		}, changed: []string{"c"}},
		{name: "left and then reported", req: prefill, act: func(f *fleet) {
			f.put("c", setRole(load.RoleDecode))
			f.publish()
			f.report("c", 9)
			f.publish()
			f.refresh("c")
		}, removed: []uint32{3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFleet()
			f.report("a", 1)
			f.report("b", 2)
			f.report("c", 3)
			f.put("c", setRole(load.RolePrefill))
			base := f.publish().Version
			tc.act(f)
			s := f.publish()
			u := delta(s, base, mustView(t, tc.req))
			var marks []uint32
			for _, m := range u.marks {
				marks = append(marks, m.handle)
			}
			if diff := cmp.Diff(tc.changed, names(u.changed)); diff != "" {
				t.Errorf("changed (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.removed, u.removed); diff != "" {
				t.Errorf("removed (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.marks, marks); diff != "" {
				t.Errorf("marks (-want +got):\n%s", diff)
			}
			if u.empty() != tc.empty {
				t.Errorf("empty is %v, want %v", u.empty(), tc.empty)
			}
		})
	}
}

func TestBaseOf_AsksForTheFullPictureWhenInDoubt(t *testing.T) {
	t.Parallel()
	s := &load.Snapshot{Epoch: "e", Version: 10, RemovalsFrom: 4}
	for _, tc := range []struct {
		name    string
		epoch   string
		version uint64
		want    uint64
	}{
		{"holds nothing", "", 0, 0},
		{"same epoch, holds nothing", "e", 0, 0},
		{"another epoch", "f", 10, 0},
		{"older than the removals remembered", "e", 3, 0},
		{"as old as the removals remembered", "e", 4, 4},
		{"one behind", "e", 9, 9},
		{"up to date", "e", 10, 10},
		{"ahead", "e", 11, 0},
	} {
		if got := baseOf(s, tc.epoch, tc.version); got != tc.want {
			t.Errorf("%s: base %d, want %d", tc.name, got, tc.want)
		}
	}
}

// For any history, any view and any base, a receiver that follows deltas holds what one gets that starts anew, however
// many versions each delta skips and however small the frames are.
func TestDelta_LeadsToWhatTheFullPictureHolds(t *testing.T) {
	t.Parallel()
	role := func(r loadmonitorpb.Role) *loadmonitorpb.Filter {
		return loadmonitorpb.Filter_builder{Roles: []loadmonitorpb.Role{r}}.Build()
	}
	reqs := []*loadmonitorpb.WatchRequest{
		loadmonitorpb.WatchRequest_builder{Ranks: true}.Build(),
		loadmonitorpb.WatchRequest_builder{}.Build(),
		loadmonitorpb.WatchRequest_builder{Ranks: true, Filter: role(loadmonitorpb.Role_ROLE_PREFILL)}.Build(),
		loadmonitorpb.WatchRequest_builder{Ranks: true, Filter: loadmonitorpb.Filter_builder{Zones: []string{"z1", "z2"}}.Build()}.Build(),
		loadmonitorpb.WatchRequest_builder{Filter: loadmonitorpb.Filter_builder{Models: []string{"m1"}, Zones: []string{"z0", "z1"}}.Build()}.Build(),
		loadmonitorpb.WatchRequest_builder{Ranks: true, Filter: loadmonitorpb.Filter_builder{Ids: []string{"w003", "w007", "w059"}}.Build()}.Build(),
	}
	for seed := range uint64(5) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			f := newFleet()
			f.remembers = 1 + rnd.IntN(40)
			ids := make([]string, 60)
			for i := range ids {
				ids[i] = fmt.Sprintf("w%03d", i)
			}
			type follower struct {
				v    *view
				r    receiver
				skip int // versions between two of its updates, about
			}
			var followers []*follower
			for _, req := range reqs {
				for _, skip := range []int{1, 5, 40} {
					followers = append(followers, &follower{v: mustView(t, req), skip: skip})
				}
			}
			for range 50 {
				for range rnd.IntN(12) {
					happen(rnd, f, ids[rnd.IntN(len(ids))])
				}
				s := f.publish()
				for _, fo := range followers {
					if rnd.IntN(fo.skip) > 0 {
						continue
					}
					size := []int{400, 2000, 3 << 20}[rnd.IntN(3)]
					apply(t, &fo.r, s, baseOf(s, fo.r.epoch, fo.r.version), fo.v, size+600)
					if rnd.IntN(3) > 0 {
						continue
					}
					var fresh receiver
					apply(t, &fresh, s, 0, fo.v, 3<<20)
					if diff := sameView(&fresh, &fo.r); diff != "" {
						t.Fatalf("version %d, view %+v (-full +followed):\n%s", s.Version, fo.v, diff)
					}
				}
			}
		})
	}
}

// happen does something to one worker.
func happen(rnd *rand.Rand, f *fleet, id string) {
	if f.entries[id] == nil {
		f.put(id, func(ws *load.WorkerStatus) { describe(rnd, ws) })
		return
	}
	switch rnd.IntN(10) {
	case 0:
		f.remove(id)
	case 1:
		f.put(id, func(ws *load.WorkerStatus) { describe(rnd, ws) })
	case 2:
		f.expire(id)
	case 3, 4, 5:
		f.refresh(id)
	default:
		f.report(id, rnd.Int64N(100), rnd.Int64N(100))
	}
}

func describe(rnd *rand.Rand, ws *load.WorkerStatus) {
	ws.Worker.Role = load.Role(1 + rnd.IntN(3))
	ws.Worker.Zone = fmt.Sprint("z", rnd.IntN(4))
	ws.Worker.Models = []string{fmt.Sprint("m", rnd.IntN(3)), "common"}
}

// What a receiver makes of a full picture with marks is what GetSnapshot says outright.
func TestDelta_MarksGiveTheAgesOfTheSnapshot(t *testing.T) {
	t.Parallel()
	f := newFleet()
	f.report("a", 1, 2)
	f.report("b", 1, 2)
	f.put("b", func(ws *load.WorkerStatus) { ws.Ranks[1].Freshness = load.Stale })
	f.publish()
	f.now += 5_000_000
	f.refresh("a")
	f.refresh("b")
	s := f.publish()
	var r receiver
	apply(t, &r, s, 0, mustView(t, loadmonitorpb.WatchRequest_builder{Ranks: true}.Build()), 3<<20)
	for _, w := range r.sorted() {
		e, _ := s.Workers.Find(w.GetId())
		if diff := cmp.Diff(toProto(e), w, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-snapshot +receiver):\n%s", w.GetId(), diff)
		}
	}
	if got := r.byID("b").GetRanks()[1].GetReceivedUs(); got != 1_000_000 {
		t.Errorf("the mark moved a stale rank to %d", got)
	}
	if got, want := r.byID("a").GetOldestReceivedUs(), uint64(f.entries["a"].Refreshed); got != want {
		t.Errorf("oldest_received_us is %d, want %d", got, want)
	}
}

// Rule SNAP1: the same version gives the same bytes.
func TestEncodeUpdate_IsDeterministic(t *testing.T) {
	t.Parallel()
	f := newFleet()
	for i := range 100 {
		f.report(fmt.Sprintf("w%d", i), int64(i), 2)
	}
	s := f.publish()
	v := mustView(t, loadmonitorpb.WatchRequest_builder{Ranks: true}.Build())
	u := delta(s, 0, v)
	first := encodeUpdate(s, &u, v, s.Summary, 1000, 2000)
	for range 3 {
		u := delta(s, 0, v)
		if diff := cmp.Diff(first, encodeUpdate(s, &u, v, s.Summary, 1000, 2000)); diff != "" {
			t.Fatal("bytes differ")
		}
	}
}

func TestEncodeUpdate_FillsFramesBeforeItSplits(t *testing.T) {
	t.Parallel()
	f := newFleet()
	for i := range 500 {
		f.report(fmt.Sprintf("w%03d", i), int64(i), 2)
	}
	f.publish()
	for i := range 500 {
		f.refresh(fmt.Sprintf("w%03d", i))
	}
	s := f.publish()
	v := mustView(t, loadmonitorpb.WatchRequest_builder{Ranks: true}.Build())
	u := delta(s, 0, v)
	const maxBytes = 4096
	frames := encodeUpdate(s, &u, v, s.Summary, 1000, maxBytes)
	for i, b := range frames {
		if n := len(b) + nowSize; n > maxBytes {
			t.Errorf("frame %d has %d bytes", i, n)
		} else if i < len(frames)-1 && n < maxBytes-300 {
			t.Errorf("frame %d has only %d bytes", i, n)
		}
		m := &loadmonitorpb.WatchResponse{}
		if err := proto.Unmarshal(b, m); err != nil {
			t.Fatal(err)
		}
		if last := i == len(frames)-1; m.GetLast() != last || m.HasSummary() != last {
			t.Errorf("frame %d of %d: last %v, summary %v", i, len(frames), m.GetLast(), m.HasSummary())
		}
	}
}

func TestEncodeUpdate_GivesAnOversizedWorkerAFrameOfItsOwn(t *testing.T) {
	t.Parallel()
	f := newFleet()
	f.report("a", 1)
	f.report("b", make([]int64, 100)...)
	f.report("c", 1)
	s := f.publish()
	v := mustView(t, loadmonitorpb.WatchRequest_builder{Ranks: true}.Build())
	u := delta(s, 0, v)
	frames := encodeUpdate(s, &u, v, s.Summary, 1000, 512)
	var r receiver
	for _, b := range frames {
		m := &loadmonitorpb.WatchResponse{}
		if err := proto.Unmarshal(b, m); err != nil {
			t.Fatal(err)
		}
		if len(b)+nowSize > 512 && (len(m.GetChanged()) != 1 || m.GetChanged()[0].GetId() != "b") {
			t.Errorf("oversized frame holds %v", m)
		}
		if err := r.take(m); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.workers) != 3 {
		t.Errorf("the receiver holds %d workers, want 3", len(r.workers))
	}
}
