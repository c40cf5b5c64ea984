package client

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

func TestView_ByURLFindsEverySpellingOfAnOrigin(t *testing.T) { // A6, L1
	url := func(w *loadmonitorpb.Worker, u string) *loadmonitorpb.Worker {
		return with(w, func(w *loadmonitorpb.Worker) { w.SetUrl(u) })
	}
	p := feed(t, &frames{}, full(5,
		url(aWorker(1, 1, 1), "http://w1.pool:30000"), url(aWorker(2, 1, 1), "http://[2001:db8::5]:30000"),
		url(aWorker(3, 1, 1), "http://twice:1"), url(aWorker(4, 1, 1), "http://twice:1"))).picture
	for asked, want := range map[string]uint32{
		"http://w1.pool:30000":               1,
		"http://W1.POOL:30000/":              1,
		"w1.pool:30000":                      1,
		"http://[2001:DB8:0:0::5]:30000/v1/": 2,
		"http://twice:1":                     3, // the first by id; both are in conflict
		"http://w2.pool:30000":               0,
		"":                                   0,
		"://":                                0,
	} {
		w, ok := viewOf(p).ByURL(asked)
		if ok != (want != 0) || ok && w.Handle != want {
			t.Errorf("ByURL(%q): %t, want handle %d", asked, ok, want)
		}
	}
}

func TestView_AllStopsWhenAsked(t *testing.T) {
	p := feed(t, &frames{}, three()).picture
	n := 0
	for range viewOf(p).All() {
		if n++; n == 2 {
			break
		}
	}
	if n != 2 {
		t.Errorf("%d workers before the break", n)
	}
}

// A change costs what changed, not what exists (rule SNAP3 on this side of the wire).
func TestView_ChangeOfOneWorkerSharesTheRest(t *testing.T) {
	const n = 10_000
	f := &frames{}
	ws := make(workers, n)
	for i := range ws {
		ws[i] = aWorker(uint32(i+1), 1, 1)
	}
	before := feed(t, f, full(5, ws...)).picture
	for name, r := range map[string]frame{
		"content": {Changed: workers{aWorker(777, 9, 9)}},
		"mark":    {Refreshed: []uint32{777}, RefreshedUs: []uint64{99}},
	} {
		held := f.held
		r.Epoch, r.View, r.BaseVersion, r.Version = "e", "v", held.version, held.version+1
		after := feed(t, f, scene{n, n}.last(r)).picture
		copied := 0
		for i := range held.table.chunks {
			if held.table.chunks[i] != after.table.chunks[i] {
				copied++
			}
		}
		if copied != 1 || after.index != before.index {
			t.Errorf("%s: %d chunks of %d were copied; index kept: %t", name, copied, len(held.table.chunks), after.index == before.index)
		}
	}
}

func TestView_LookUpsAllocateNothing(t *testing.T) {
	c := &Client{}
	p := feed(t, &frames{}, three()).picture
	c.view.Store(viewOf(p))
	if n := testing.AllocsPerRun(100, func() {
		v := c.View()
		a, _ := v.Worker("w00002")
		b, _ := v.ByHandle(2)
		d, _ := v.ByURL(a.URL)
		if a != b || a != d || a.ReceivedAt(0).After(a.OldestReceivedAt()) {
			t.Fatal("look-ups differ")
		}
		if _, ok := v.Worker("nobody"); ok {
			t.Fatal("found nobody")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestHandles_AnyNumbers(t *testing.T) {
	for name, handle := range map[string]func(i int) uint32{
		"from zero": func(i int) uint32 { return uint32(i) },
		"far apart": func(i int) uint32 { return uint32(i) << 20 },
		"very high": func(i int) uint32 { return ^uint32(0) - uint32(i) },
		"one":       func(i int) uint32 { return 1 },
	} {
		n := 3000
		if name == "one" {
			n = 1
		}
		h := newHandles(n)
		for i := range n {
			if !h.put(handle(i), i) {
				t.Fatalf("%s: handle %d is there already", name, handle(i))
			}
		}
		for i := range n {
			if got := h.find(handle(i)); got != i {
				t.Errorf("%s: handle %d is at %d, want %d", name, handle(i), got, i)
			}
			if h.put(handle(i), i) {
				t.Errorf("%s: handle %d was put twice", name, handle(i))
			}
		}
		if got := h.find(handle(n-1) + 0x1234567); got != -1 {
			t.Errorf("%s: an unknown handle is at %d", name, got)
		}
	}
}

// said is everything that a view says, as text.
func said(v *View) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d %v %+v up=%t\n", v.Epoch, v.Version, v.State, v.Summary, v.Link.Up)
	for w := range v.All() {
		fmt.Fprintf(&b, "%+v oldest %d", *w.Status, w.oldestFresh())
		for i := range w.Ranks {
			fmt.Fprintf(&b, " rank %d at %d", w.Ranks[i].Load.DPRank, w.received(i))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// I6 on this side of the wire: readers beside a fast writer see whole versions, in order, and a kept view never changes.
// Each version sets running = waiting = version on three workers, in two frames, and marks a fourth.
func TestView_ReadersSeeWholeVersionsInOrder(t *testing.T) {
	const versions, n = 600, 200
	at := func(handle uint32, version uint64) *loadmonitorpb.Worker {
		return with(aWorker(handle, int64(version), version), func(w *loadmonitorpb.Worker) {
			waiting := int64(version)
			w.GetAggregate().SetNumWaitingReqs(waiting)
		})
	}
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	m := &monitor{scripts: []func(*session) error{func(s *session) error {
		ws := make(workers, n)
		for i := range ws {
			ws[i] = at(uint32(i+1), 1)
		}
		if err := s.send(full(1, ws...)); err != nil {
			return err
		}
		for v := uint64(2); v <= versions; v++ {
			half := frame{Epoch: "e", View: "v", BaseVersion: v - 1, Version: v, Changed: workers{at(1, v), at(100, v)}}
			rest := frame{Epoch: "e", View: "v", BaseVersion: v - 1, Version: v, Changed: workers{at(150, v)}, Refreshed: []uint32{2}, RefreshedUs: []uint64{v}}
			if v%100 == 0 { // somebody comes or goes
				if v%200 == 0 {
					rest.Removed = []uint32{uint32(n) + 1}
				} else {
					rest.Changed = append(rest.Changed, at(uint32(n)+1, v))
				}
			}
			all := uint32(n)
			if v%200 >= 100 {
				all++
			}
			if err := s.send(half.Build()); err != nil {
				return err
			}
			if err := s.send(scene{all, all}.last(rest)); err != nil {
				return err
			}
		}
		return s.hang()
	}}}
	loadmonitorpb.RegisterSnapshotServiceServer(server, m)
	go server.Serve(l)
	defer server.Stop()
	c, err := Dial("passthrough:///monitor", Options{DialOptions: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	type kept struct {
		view *View
		said string
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var readers sync.WaitGroup
	for reader := range 4 {
		readers.Go(func() {
			var keep []kept
			last := uint64(0)
			check := func(v *View) bool {
				if v.Version < last {
					t.Errorf("version %d after %d", v.Version, last)
				}
				if v.Version == 0 {
					return false
				}
				if v.Version > last && len(keep) < 20 && v.Version%uint64(reader+40) == 0 {
					keep = append(keep, kept{v, said(v)})
				}
				last = v.Version
				for _, h := range []uint32{1, 100, 150} {
					w, ok := v.ByHandle(h)
					r, _ := w.Aggregate.Int(load.SumRunningReqs)
					q, _ := w.Aggregate.Int(load.SumWaitingReqs)
					if !ok || r != int64(v.Version) || q != r {
						t.Errorf("version %d is torn: worker %d runs %d, waits %d", v.Version, h, r, q)
					}
				}
				if w, _ := v.ByHandle(2); w.received(0) != load.Instant(v.Version) {
					t.Errorf("version %d is torn: mark %d", v.Version, w.received(0))
				}
				return v.Version == versions
			}
			if reader%2 == 0 { // one that polls and one that waits
				for !check(c.View()) && ctx.Err() == nil {
				}
			} else if _, err := c.Wait(ctx, check); err != nil {
				t.Errorf("reader %d: %v", reader, err)
			}
			for _, k := range keep {
				if now := said(k.view); now != k.said {
					t.Errorf("a kept view of version %d has changed from\n%s\nto\n%s", k.view.Version, k.said, now)
				}
			}
		})
	}
	readers.Wait()
	if ctx.Err() != nil {
		t.Fatalf("not done: version %d", c.View().Version)
	}
}
