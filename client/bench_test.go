package client

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

var sizes = []int{100, 1_000, 10_000}

// heavyWorker has as many ranks and signals as a large engine.
func heavyWorker(handle uint32, running int64) *loadmonitorpb.Worker {
	return with(aWorker(handle, running, 1000), func(w *loadmonitorpb.Worker) {
		ranks := make([]*loadmonitorpb.Rank, 8)
		for i := range ranks {
			n, f := running+int64(i), 0.5
			ranks[i] = rank{
				DpRank: int32(i), Freshness: fresh, ReceivedUs: 1000, SampleAgeMs: &n,
				NumRunningReqs: &n, NumWaitingReqs: &n, NumWaitingUncachedTokens: &n, NumUsedTokens: &n, NumTotalTokens: &n,
				MaxTotalNumTokens: &n, MaxRunningRequests: &n, TokenUsage: &f, GenThroughput: &f, CacheHitRate: &f, Utilization: &f,
			}.Build()
		}
		w.SetRanks(ranks)
		w.SetExpectedRanks(8)
	})
}

func fleet(n int) workers {
	ws := make(workers, n)
	for i := range ws {
		ws[i] = heavyWorker(uint32(i+1), int64(i))
	}
	return ws
}

func benchFrames(b *testing.B, n int) *frames {
	b.Helper()
	f := &frames{}
	r := scene{uint32(n), uint32(n)}.last(frame{Epoch: "e", View: "v", Version: 1, NowUs: 2000, Changed: fleet(n)})
	if _, err := f.take(r); err != nil {
		b.Fatal(err)
	}
	return f
}

func benchClient(b *testing.B, n int) *Client {
	b.Helper()
	c, err := New("passthrough:///unused", Options{})
	if err != nil {
		b.Fatal(err)
	}
	p := benchFrames(b, n).held
	c.held, c.clock = p, (*clock)(nil).observe(time.Now(), time.Now(), 2000)
	c.link.Up = true
	c.publishLocked(true)
	return c
}

func BenchmarkView(b *testing.B) {
	c := benchClient(b, 1_000)
	b.ReportAllocs()
	for b.Loop() {
		if c.View().Version == 0 {
			b.Fatal("no view")
		}
	}
}

func BenchmarkByHandle(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			v := benchClient(b, n).View()
			handle := uint32(1)
			b.ReportAllocs()
			for b.Loop() {
				if w, ok := v.ByHandle(handle); !ok || w.Status == nil {
					b.Fatal("not found")
				}
				if handle += 61; handle > uint32(n) {
					handle -= uint32(n)
				}
			}
		})
	}
}

// BenchmarkByID stands next to the bare map that it is measured against: same ids, same order.
func BenchmarkByID(b *testing.B) {
	for _, n := range sizes {
		v := benchClient(b, n).View()
		ids := make([]string, n)
		bare := make(map[string]*Status, n)
		for i := range ids {
			ids[i] = strings.Clone(v.table.at(i * 61 % n).status.ID) // a router has its own copies
		}
		for w := range v.All() {
			bare[w.ID] = w.Status
		}
		b.Run(fmt.Sprintf("%d/map", n), func(b *testing.B) {
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				if s, ok := bare[ids[i]]; !ok || s == nil {
					b.Fatal("not found")
				}
				if i++; i == n {
					i = 0
				}
			}
		})
		b.Run(fmt.Sprintf("%d/view", n), func(b *testing.B) {
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				if w, ok := v.Worker(ids[i]); !ok || w.Status == nil {
					b.Fatal("not found")
				}
				if i++; i == n {
					i = 0
				}
			}
		})
	}
}

// BenchmarkApplyOne replaces one worker of many.
func BenchmarkApplyOne(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := benchFrames(b, n)
			version := uint64(1)
			r := scene{uint32(n), uint32(n)}.last(frame{Epoch: "e", View: "v", Changed: workers{heavyWorker(7, 7)}})
			b.ReportAllocs()
			for b.Loop() {
				r.SetBaseVersion(version)
				version++
				r.SetVersion(version)
				if _, err := f.take(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkApplyMarks refreshes every worker.
func BenchmarkApplyMarks(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := benchFrames(b, n)
			version := uint64(1)
			m := frame{Epoch: "e", View: "v"}
			for i := range n {
				m.Refreshed = append(m.Refreshed, uint32(i+1))
				m.RefreshedUs = append(m.RefreshedUs, 3000)
			}
			r := scene{uint32(n), uint32(n)}.last(m)
			b.ReportAllocs()
			for b.Loop() {
				r.SetBaseVersion(version)
				version++
				r.SetVersion(version)
				if _, err := f.take(r); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/mark")
		})
	}
}

// BenchmarkDelta decodes and applies the bytes of 200 changed workers with 8 ranks each, among 1,000.
func BenchmarkDelta(b *testing.B) {
	const n, changed = 1_000, 200
	f := benchFrames(b, n)
	version := uint64(1)
	r := scene{n, n}.last(frame{Epoch: "e", View: "v", NowUs: 2000, Changed: fleet(changed)})
	wire, err := proto.Marshal(r)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(wire)))
	b.ReportAllocs()
	for b.Loop() {
		var got loadmonitorpb.WatchResponse
		if err := proto.Unmarshal(wire, &got); err != nil {
			b.Fatal(err)
		}
		got.SetBaseVersion(version)
		version++
		got.SetVersion(version)
		if _, err := f.take(&got); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/changed, "ns/worker")
}

// BenchmarkAge makes a whole fleet stale at once.
func BenchmarkAge(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := benchFrames(b, n).held
			now := time.Now()
			ck := (*clock)(nil).observe(now, now, 2000)
			b.ReportAllocs()
			for b.Loop() {
				a := newAgeing(p, ck, "silent")
				if !a.advance(now.Add(time.Hour)) || a.summary.Fresh != 0 {
					b.Fatal("did not age")
				}
			}
		})
	}
}

// BenchmarkDecide reads what a router compares, over 64 candidates by handle.
func BenchmarkDecide(b *testing.B) {
	c := benchClient(b, 1_000)
	b.ReportAllocs()
	for b.Loop() {
		v := c.View()
		best := int64(-1)
		for h := uint32(1); h <= 64; h++ {
			w, ok := v.ByHandle(h)
			if !ok || w.Freshness != load.Fresh {
				b.Fatal("not comparable")
			}
			if n, ok := w.Aggregate.Int(load.SumRunningReqs); ok && (best < 0 || n < best) {
				best = n
			}
		}
		if best < 0 {
			b.Fatal("nothing compared")
		}
	}
}
