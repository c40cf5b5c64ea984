package watch

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// Source is where snapshots come from: the aggregator.
type Source interface {
	// Current returns the newest publication, without waiting.
	Current() *load.Publication
	// Now reads the monotonic clock of the snapshots' epoch.
	Now() load.Instant
}

// Options are the settings of a [Service]. Only Source must be given.
type Options struct {
	Source Source
	// Logger gets one line per episode of trouble. Nil: nothing is logged.
	Logger *slog.Logger

	// Heartbeat is how often the source beats; watchers are told, so that they know what silence means. Default 1 s.
	Heartbeat time.Duration
	// MaxWatchers bounds the streams that are open at a time. Default 4096.
	MaxWatchers int
	// MaxInterval bounds what a watcher may ask for as the shortest time between two updates. Default 60 s.
	MaxInterval time.Duration
	// SendTimeout is how long a watcher may take nothing while something is on its way to it. Default 10 s.
	SendTimeout time.Duration
	// MaxFrameBytes bounds one encoded WatchResponse and one page of a snapshot. Default 3 MiB, safely below the 4 MiB
	// that stock gRPC clients accept.
	MaxFrameBytes int
	// MaxFilterValues bounds each list of a filter. Default 1024.
	MaxFilterValues int
	// PageLifetime is how long the pages of a snapshot can be asked for after the last one was. Default 30 s.
	PageLifetime time.Duration
}

// minFrameBytes leaves room for what every frame repeats.
const minFrameBytes = 256

func (o *Options) setDefaults() error {
	if o.Source == nil {
		return errors.New("watch: Options.Source is nil: give the aggregator")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, f := range []struct {
		name string
		d    *time.Duration
		def  time.Duration
	}{
		{"Heartbeat", &o.Heartbeat, time.Second},
		{"MaxInterval", &o.MaxInterval, time.Minute},
		{"SendTimeout", &o.SendTimeout, 10 * time.Second},
		{"PageLifetime", &o.PageLifetime, 30 * time.Second},
	} {
		if *f.d == 0 {
			*f.d = f.def
		}
		if *f.d < time.Millisecond {
			return fmt.Errorf("watch: Options.%s is %v: want at least 1ms", f.name, *f.d)
		}
	}
	for _, f := range []struct {
		name    string
		n       *int
		def, lo int
	}{
		{"MaxWatchers", &o.MaxWatchers, 4096, 1},
		{"MaxFrameBytes", &o.MaxFrameBytes, 3 << 20, minFrameBytes},
		{"MaxFilterValues", &o.MaxFilterValues, 1024, 1},
	} {
		if *f.n == 0 {
			*f.n = f.def
		}
		if *f.n < f.lo {
			return fmt.Errorf("watch: Options.%s is %d: want at least %d", f.name, *f.n, f.lo)
		}
	}
	return nil
}

// Service is loadmonitor.v1.SnapshotService. Its methods may be called from any goroutine. The server that it is
// registered with must use [Codec].
type Service struct {
	loadmonitorpb.UnimplementedSnapshotServiceServer

	// Immutable after New.
	source        Source
	log           *slog.Logger
	heartbeat     time.Duration
	heartbeatMs   uint32
	maxWatchers   int
	maxInterval   time.Duration
	sendTimeout   time.Duration
	maxFrameBytes int
	maxValues     int
	started       time.Time
	closed        chan struct{} // closed by Shutdown

	shutdown sync.Once
	pages    pages
	pace     pace
	relay    relay
	versions versions
	counters counters
	stuck    episode
	refused  episode
}

// New returns a service that has started nothing.
func New(o Options) (*Service, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	s := &Service{
		source:        o.Source,
		log:           o.Logger,
		heartbeat:     o.Heartbeat,
		heartbeatMs:   uint32(o.Heartbeat.Milliseconds()),
		maxWatchers:   o.MaxWatchers,
		maxInterval:   o.MaxInterval,
		sendTimeout:   o.SendTimeout,
		maxFrameBytes: o.MaxFrameBytes,
		maxValues:     o.MaxFilterValues,
		started:       time.Now(),
		closed:        make(chan struct{}),
		pages:         pages{lifetime: o.PageLifetime},
	}
	s.relay.source, s.relay.pace = s.source, &s.pace
	return s, nil
}

// Shutdown ends every Watch at once with UNAVAILABLE and refuses new ones (rule LIFE1). GetSnapshot goes on. It does not
// wait: grpc's GracefulStop waits for the streams' handlers.
func (s *Service) Shutdown() { s.shutdown.Do(func() { close(s.closed) }) }

// uptime reads the service's own monotonic clock.
func (s *Service) uptime() time.Duration { return time.Since(s.started) }
