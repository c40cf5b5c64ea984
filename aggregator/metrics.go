package aggregator

import (
	"sync/atomic"

	"github.com/loadmonitor/loadmonitor/load"
)

// counts only rise (rule LIFE4).
type counts struct {
	accepted     atomic.Uint64
	refused      map[string]*atomic.Uint64 // by label of each refusal of reports; the map itself is immutable
	takeovers    atomic.Uint64
	restarts     atomic.Uint64
	expired      atomic.Uint64
	overCapacity atomic.Uint64
	versions     atomic.Uint64
	gaps         atomic.Uint64
}

func (c *counts) refuse(err error) {
	if n := c.refused[load.RefusalLabel(err)]; n != nil {
		n.Add(1)
	}
}

// Metrics returns the figures of this room. Values are read when they are collected.
func (a *Aggregator) Metrics() []load.Metric {
	counter := func(name, help string, n *atomic.Uint64) load.Metric {
		return load.Metric{Name: name, Help: help, Counter: true, Collect: func(yield func(float64, ...load.Label)) {
			yield(float64(n.Load()))
		}}
	}
	return []load.Metric{
		counter("reports_accepted_total", "Reports taken.", &a.counts.accepted),
		{
			Name: "reports_refused_total", Help: "Reports refused whole, by reason.", Counter: true,
			Collect: func(yield func(float64, ...load.Label)) {
				for label, n := range a.counts.refused {
					yield(float64(n.Load()), load.Label{Name: "reason", Value: label})
				}
			},
		},
		counter("stream_takeovers_total", "Streams ended because a newer one took over.", &a.counts.takeovers),
		counter("source_restarts_total", "New source instances that replaced an older one.", &a.counts.restarts),
		counter("workers_expired_total", "Times a rank of a worker passed its freshness deadline.", &a.counts.expired),
		counter("reports_over_capacity_total", "Reports in which a rank uses more than its capacity.", &a.counts.overCapacity),
		counter("sequence_gaps_total", "Messages that did not arrive on sockets, by gaps in their sequence.", &a.counts.gaps),
		counter("versions_published_total", "Snapshot versions published.", &a.counts.versions),
		{
			Name: "workers", Help: "Registered workers by freshness.",
			Collect: func(yield func(float64, ...load.Label)) {
				s := a.Current().Snapshot.Summary
				for _, c := range []struct {
					f load.Freshness
					n int
				}{
					{load.Fresh, s.Fresh}, {load.Stale, s.Stale}, {load.Missing, s.Missing}, {load.Incomplete, s.Incomplete},
					{load.Unreachable, s.Unreachable},
				} {
					yield(float64(c.n), load.Label{Name: "freshness", Value: c.f.String()})
				}
			},
		},
		{
			Name: "worker_fresh", Help: "1 for a fresh worker, 0 for any other.",
			Collect: func(yield func(float64, ...load.Label)) {
				for e := range a.Current().Snapshot.Workers.All() {
					fresh := 0.0
					if e.Freshness == load.Fresh {
						fresh = 1
					}
					yield(fresh, load.Label{Name: "worker", Value: e.Worker.ID})
				}
			},
		},
	}
}
