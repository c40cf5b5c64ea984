package client

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

func TestView_ChainOfRandomUpdatesMatchesAModel(t *testing.T) {
	for seed := range uint64(10) {
		chain(t, seed)
	}
}

// chain applies random updates and compares each picture with a plain map.
func chain(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	model := map[uint32]*loadmonitorpb.Worker{}
	marks := map[uint32]uint64{}
	f := &frames{}
	version, nextHandle := uint64(0), uint32(1)
	var keep []*View
	var keptSaid []string
	for range 60 {
		base := version
		version += 1 + rnd.Uint64N(3)
		r := frame{Epoch: "e", View: "v", BaseVersion: base, Version: version}
		for range rnd.IntN(4) { // new ones, under ids that may have been there before
			id := fmt.Sprintf("id%02d", rnd.IntN(90))
			if taken(model, id) {
				continue
			}
			w := with(aWorker(nextHandle, rnd.Int64N(100), version*10), func(w *loadmonitorpb.Worker) {
				w.SetId(id)
				w.SetUrl("http://" + id + ":1")
			})
			nextHandle++
			model[w.GetHandle()] = w
			r.Changed = append(r.Changed, w)
		}
		for _, h := range slices.Sorted(maps.Keys(model)) {
			switch rnd.IntN(8) {
			case 0:
				w := with(model[h], func(w *loadmonitorpb.Worker) {
					w.GetAggregate().SetNumRunningReqs(rnd.Int64N(100))
					w.SetFreshness(loadmonitorpb.Freshness(1 + rnd.IntN(5)))
				})
				if !slices.ContainsFunc(r.Changed, func(c *loadmonitorpb.Worker) bool { return c.GetHandle() == h }) {
					model[h] = w
					delete(marks, h)
					r.Changed = append(r.Changed, w)
				}
			case 1:
				if !slices.ContainsFunc(r.Changed, func(c *loadmonitorpb.Worker) bool { return c.GetHandle() == h }) {
					delete(model, h)
					delete(marks, h)
					r.Removed = append(r.Removed, h)
				}
			case 2:
				r.Refreshed = append(r.Refreshed, h)
				r.RefreshedUs = append(r.RefreshedUs, version*10+5)
				marks[h] = version*10 + 5
			}
		}
		if base == 0 || rnd.IntN(10) == 0 {
			r.BaseVersion, r.Removed, r.Changed, r.Refreshed, r.RefreshedUs = 0, nil, nil, nil, nil
			for _, h := range slices.Sorted(maps.Keys(model)) {
				r.Changed = append(r.Changed, model[h])
				if us := marks[h]; us != 0 {
					r.Refreshed, r.RefreshedUs = append(r.Refreshed, h), append(r.RefreshedUs, us)
				}
			}
			slices.SortFunc(r.Changed, func(a, b *loadmonitorpb.Worker) int { return strings.Compare(a.GetId(), b.GetId()) })
		}
		var all workers
		for _, w := range model {
			all = append(all, w)
		}
		r.Summary = summaryFor(all...)
		for len(r.Changed) > 2 && rnd.IntN(2) == 0 { // split
			half := frame{Epoch: "e", View: "v", BaseVersion: r.BaseVersion, Version: r.Version, Changed: r.Changed[:2]}
			r.Changed = r.Changed[2:]
			feed(t, f, half.Build())
		}
		r.Last = true
		p := feed(t, f, r.Build()).picture
		consistent(t, p)
		if p.table.n != len(model) {
			t.Fatalf("seed %d version %d: %d workers, want %d", seed, version, p.table.n, len(model))
		}
		for h, want := range model {
			w, ok := viewOf(p).ByHandle(h)
			if !ok || w.ID != want.GetId() || w.Freshness != freshnessFromProto(want.GetFreshness()) || running(t, p, h) != want.GetAggregate().GetNumRunningReqs() || w.refreshed != load.Instant(marks[h]) {
				t.Fatalf("seed %d version %d: handle %d is %+v, want %v with mark %d", seed, version, h, w, want, marks[h])
			}
		}
		keep = append(keep, viewOf(p))
		keptSaid = append(keptSaid, said(viewOf(p)))
	}
	for i, v := range keep {
		if said(v) != keptSaid[i] {
			t.Fatalf("seed %d: the view of version %d has changed", seed, v.Version)
		}
	}
}

func taken(model map[uint32]*loadmonitorpb.Worker, id string) bool {
	for _, w := range model {
		if w.GetId() == id {
			return true
		}
	}
	return false
}
