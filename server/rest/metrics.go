package rest

import "github.com/loadmonitor/loadmonitor/load"

// Metrics returns the figures of this handler.
func (h *Handler) Metrics() []load.Metric {
	one := func(name, help string, counter bool, value func() float64) load.Metric {
		return load.Metric{Name: name, Help: help, Counter: counter, Collect: func(yield func(float64, ...load.Label)) {
			yield(value())
		}}
	}
	return []load.Metric{
		{
			Name: "rest_snapshots_total", Counter: true,
			Help: "Snapshots answered over HTTP, with a body or with 304.",
			Collect: func(yield func(float64, ...load.Label)) {
				yield(float64(h.bodies.Load()), load.Label{Name: "result", Value: "body"})
				yield(float64(h.notModified.Load()), load.Label{Name: "result", Value: "not_modified"})
			},
		},
		one("rest_renders_total", "Versions rendered as JSON.", true,
			func() float64 { return float64(h.renderer.count.Load()) }),
		one("rest_body_bytes", "Size of the newest rendered version, not compressed; 0 before the first.", false,
			func() float64 {
				if newest := h.renderer.newest.Load(); newest != nil {
					return float64(len(newest.body))
				}
				return 0
			}),
		one("rest_watchers", "Watches open over HTTP.", false,
			func() float64 { return float64(h.watchers.Load()) }),
		one("rest_watchers_refused_total", "Watches refused over HTTP because too many were open.", true,
			func() float64 { return float64(h.refused.Load()) }),
		one("rest_stalled_total", "HTTP readers cut off because they took nothing for too long.", true,
			func() float64 { return float64(h.stalled.Load()) }),
	}
}
