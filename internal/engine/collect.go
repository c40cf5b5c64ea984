package engine

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// sample is one collection of an engine: the newest load of every rank. It is immutable, and every sink gets the same one.
type sample struct {
	taken time.Time
	ranks []load.RankLoad
}

// sink takes the collections of one engine, one per cycle and in order, from one goroutine. It does not block: a sink that
// cannot take a collection drops it or fails. What it fails with is counted and logged once per episode, and concerns no
// other sink.
type sink interface {
	publish(*sample) error
}

// outlet is one sink with its record.
type outlet struct {
	name string
	sink sink

	// used only by the driver
	failing bool

	failed atomic.Uint64
}

// feed hands one collection to every outlet.
func feed(outlets []*outlet, s *sample, logger *slog.Logger) {
	for _, o := range outlets {
		err := o.sink.publish(s)
		switch {
		case err == nil && o.failing:
			logger.Info("sink takes samples again", "sink", o.name)
		case err != nil && !o.failing:
			logger.Warn("sink fails to take samples", "sink", o.name, "error", err)
		}
		o.failing = err != nil
		if err != nil {
			o.failed.Add(1)
		}
	}
}

// latest is the sink that keeps the newest collection for whoever asks: the reporter's streams and /v1/loads, each at its
// own pace. Like shared memory it goes on answering while the scheduler hangs.
type latest struct {
	newest atomic.Pointer[sample]
}

func (l *latest) publish(s *sample) error {
	l.newest.Store(s)
	return nil
}

// get returns the newest collection, or nil before the first. Its content is not to be changed.
func (l *latest) get() *sample { return l.newest.Load() }

// append is the reporter's sampler.
func (l *latest) append(dst []load.RankLoad) ([]load.RankLoad, error) {
	if s := l.get(); s != nil {
		dst = append(dst, s.ranks...)
	}
	return dst, nil
}
