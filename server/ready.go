package server

import (
	"context"
	"sync"

	"github.com/loadmonitor/loadmonitor/load"
)

// phase is how far the server's life got.
type phase uint8

const (
	warmingUp phase = iota // the first discovery pass has not ended
	serving
	closing
)

// String says why the server is not ready; "ready" when it is.
func (p phase) String() string {
	switch p {
	case warmingUp:
		return "warming_up: the first discovery pass has not ended"
	case serving:
		return "ready"
	}
	return "shutting_down"
}

// readiness says whether the server answers with knowledge: after the first discovery pass, whatever it found, and
// before the shutdown (rule LIFE1). It only ever moves forward, and only by whether discovery has ended: dead workers and
// slow probes do not take it back.
type readiness struct {
	mu      sync.Mutex
	now     phase
	changed chan struct{} // closed when now moves on
}

func newReadiness() *readiness { return &readiness{changed: make(chan struct{})} }

// phase returns the current phase and a channel that is closed when it ends.
func (r *readiness) phase() (phase, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now, r.changed
}

// advance moves on to p unless the server is there or past it.
func (r *readiness) advance(p phase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p <= r.now {
		return
	}
	r.now = p
	close(r.changed)
	r.changed = make(chan struct{})
}

// follow waits for the end of the first discovery pass.
func (r *readiness) follow(ctx context.Context, s Snapshots) {
	for {
		p := s.Current()
		if p.Snapshot.State != load.FleetWarmingUp {
			r.advance(serving)
			return
		}
		select {
		case <-p.Next:
		case <-ctx.Done():
			return
		}
	}
}

func (r *readiness) metrics() []load.Metric {
	return []load.Metric{gauge("ready", "1 when the first discovery pass has ended and no shutdown is under way.", func() float64 {
		if p, _ := r.phase(); p == serving {
			return 1
		}
		return 0
	})}
}
