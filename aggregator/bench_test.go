package aggregator

import (
	"fmt"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// benchFleet returns an aggregator without a publisher, its workers fed once by eight ranks each and published.
func benchFleet(b *testing.B, workers int) (*Aggregator, []*load.Stream, []*load.Report) {
	b.Helper()
	a, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	set := make([]load.Worker, workers)
	for i := range set {
		set[i] = w(1, func(x *load.Worker) {
			x.Origin = fmt.Sprintf("127.0.%d.%d:30000", i/250, i%250)
			x.URL, x.ID = "http://"+x.Origin, fmt.Sprintf("w%05d", i)
		})
	}
	a.SetWorkers(pointers(set))
	streams, reports := make([]*load.Stream, workers), make([]*load.Report, workers)
	for i := range set {
		ranks := make([]load.RankLoad, 8)
		for r := range ranks {
			ranks[r] = rank(int32(r))
		}
		streams[i], reports[i] = push(), report(1, fmt.Sprint("src", i), 1, ranks...)
		reports[i].Claim.Address = set[i].URL
		if err := a.Apply(streams[i], reports[i]); err != nil {
			b.Fatal(err)
		}
	}
	a.publish(false)
	return a, streams, reports
}

// next makes the report the one after it, with other values where changed.
func next(r *load.Report, changed bool) {
	r.Sequence++
	if changed {
		for i := range r.Ranks {
			r.Ranks[i].SetInt(load.NumRunningReqs, int64(r.Sequence%100))
		}
	}
}

func BenchmarkApply(b *testing.B) {
	for _, changed := range []bool{true, false} {
		b.Run(fmt.Sprintf("changed=%v", changed), func(b *testing.B) {
			a, streams, reports := benchFleet(b, 1000)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				n := i % len(streams)
				next(reports[n], changed)
				if err := a.Apply(streams[n], reports[n]); err != nil {
					b.Fatal(err)
				}
				i++
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reports/s")
		})
	}
}

// BenchmarkPublish publishes k changed workers of a fleet. ns/op is the time in publish, garbage collection that happens to
// fall there included, read from the clock: stopping the benchmark's timer stops the world, which costs more than what is
// measured and empties the allocator's caches. B/op and allocs/op count Apply as well, which prepares each publication.
func BenchmarkPublish(b *testing.B) {
	for _, workers := range []int{100, 1024, 10_000} {
		for _, k := range []int{1, 50} {
			b.Run(fmt.Sprintf("workers=%d/k=%d", workers, k), func(b *testing.B) {
				a, streams, reports := benchFleet(b, workers)
				b.ReportAllocs()
				var publishing time.Duration
				i := 0
				for b.Loop() {
					for range k {
						n := i * 61 % workers
						next(reports[n], true)
						if err := a.Apply(streams[n], reports[n]); err != nil {
							b.Fatal(err)
						}
						i++
					}
					begun := time.Now()
					a.publish(false)
					publishing += time.Since(begun)
				}
				b.ReportMetric(float64(publishing.Nanoseconds())/float64(b.N), "ns/op")
			})
		}
	}
}

// BenchmarkApplyRank takes messages of single ranks and publishes after each fifty, as the publisher does beside 1,024
// sockets of 10 Hz. The ranks of a worker follow one another, or all workers' ranks come mixed.
func BenchmarkApplyRank(b *testing.B) {
	const workers, ranks = 128, 8
	for _, mixed := range []bool{false, true} {
		b.Run(fmt.Sprintf("mixed=%v", mixed), func(b *testing.B) {
			a, err := New(Options{})
			if err != nil {
				b.Fatal(err)
			}
			set, streams := make([]load.Worker, workers), make([]*load.Stream, workers*ranks)
			for i := range set {
				set[i] = w(1, func(x *load.Worker) {
					x.ID, x.Transport, x.ExpectedRanks = fmt.Sprintf("w%05d", i), load.TransportZMQ, ranks
					x.Origin = fmt.Sprintf("127.0.0.%d:30000", i)
					x.URL = "http://" + x.Origin
				})
			}
			for i := range streams {
				streams[i] = load.NewStream(load.TransportZMQ)
			}
			a.SetWorkers(pointers(set))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				n := i % len(streams)
				if mixed {
					n = i * 389 % len(streams)
				}
				r := load.RankReport{WorkerID: set[n/ranks].ID, Sequence: int64(i / len(streams)), Load: rank(int32(n % ranks))}
				r.Load.SetInt(load.NumRunningReqs, r.Sequence%100)
				if err := a.ApplyRank(streams[n], &r); err != nil {
					b.Fatal(err)
				}
				if i%50 == 49 {
					a.publish(false)
				}
			}
		})
	}
}
