package watch

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// counters only rise.
type counters struct {
	framesSent, bytesSent    atomic.Uint64
	framesEncoded, cacheHits atomic.Uint64
	stuck, refused           atomic.Uint64
	pagesSent, pagesAborted  atomic.Uint64
}

// Metrics returns the figures of the service, for whoever exposes them.
func (s *Service) Metrics() []load.Metric {
	counter := func(name, help string, c *atomic.Uint64) load.Metric {
		return load.Metric{Name: name, Help: help, Counter: true, Collect: func(yield func(float64, ...load.Label)) {
			yield(float64(c.Load()))
		}}
	}
	gauge := func(name, help string, value func() float64) load.Metric {
		return load.Metric{Name: name, Help: help, Collect: func(yield func(float64, ...load.Label)) { yield(value()) }}
	}
	c := &s.counters
	return []load.Metric{
		gauge("watchers", "Open Watch streams.", func() float64 { return float64(s.pace.watchers.Load()) }),
		gauge("watchers_limit", "Watch streams that may be open at a time.", func() float64 { return float64(s.maxWatchers) }),
		counter("watchers_refused_total", "Watch streams refused because of the limit.", &c.refused),
		counter("watchers_stuck_total", "Watch streams ended because the watcher took nothing for too long.", &c.stuck),
		counter("watch_frames_sent_total", "Frames handed to gRPC for a watcher.", &c.framesSent),
		counter("watch_bytes_sent_total", "Bytes of the frames handed to gRPC for a watcher.", &c.bytesSent),
		counter("watch_frames_encoded_total", "Frames encoded; watchers with the same view and base share one.", &c.framesEncoded),
		counter("watch_frame_cache_hits_total", "Updates and heartbeats that were encoded already when a watcher needed them.", &c.cacheHits),
		gauge("watch_effective_interval_seconds",
			"Time between two sends to one watcher under load, so that all sending keeps within half of the CPUs; 0: no limit.",
			func() float64 { return s.relay.interval().Seconds() }),
		gauge("watch_send_cost_seconds", "Smoothed CPU time of sending one frame, estimated from the time spent in SendMsg.",
			func() float64 { return time.Duration(s.pace.cost.Load()).Seconds() }),
		counter("snapshot_pages_sent_total", "Responses of GetSnapshot.", &c.pagesSent),
		counter("snapshot_pages_aborted_total", "Page tokens refused because their snapshot was gone.", &c.pagesAborted),
	}
}

// quietTime is how long a trouble must not have happened for the next time to be a new episode.
const quietTime = time.Minute

// episode turns repeated trouble into one log line each time that it begins.
type episode struct {
	mu       sync.Mutex
	last     time.Duration // guarded by mu; reading of the uptime
	begun    bool          // guarded by mu
	unlogged uint64        // guarded by mu
}

// note calls log if the trouble begins, with the number of times that it happened without a line before.
func (e *episode) note(now time.Duration, log func(unlogged uint64)) {
	e.mu.Lock()
	begins := !e.begun || now-e.last >= quietTime
	e.begun, e.last = true, now
	unlogged := e.unlogged
	if begins {
		e.unlogged = 0
	} else {
		e.unlogged++
	}
	e.mu.Unlock()
	if begins {
		log(unlogged)
	}
}
