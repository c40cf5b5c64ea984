package aggregator

import (
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/validator"
)

// Options configure an Aggregator. The zero value is usable.
type Options struct {
	// Window is how long a report keeps a rank fresh. Default 3 s.
	Window time.Duration
	// ZMQWindow is the same for ranks fed over ZMQ, whose publishers may be silent for one long step. Default 5 s.
	ZMQWindow time.Duration
	// PublishInterval is the shortest time between two publications under load. Default 5 ms.
	PublishInterval time.Duration
	// RefreshInterval batches refresh marks. Default 100 ms.
	RefreshInterval time.Duration
	// Heartbeat is how often the publisher shows that it lives. Default 1 s.
	Heartbeat time.Duration
	// MaxRanks bounds the ranks of one report. Default 1024.
	MaxRanks int
	// MaxDPRank bounds dp_rank. Default 65535.
	MaxDPRank int32
	// StreamLost is called, outside any lock, with the id of a worker whose push stream was released. It must not block.
	StreamLost func(workerID string)
	// Doubt is called, outside any lock, with the id of a worker of which registration may know what is no longer so: a new
	// source instance took over, a report has another number of ranks than is expected (rule FR3), or ranks went stale. It
	// may be called for every report and must not block.
	Doubt func(workerID string)
}

// The defaults of Options, and bounds that need no flag because nothing but memory depends on them.
const (
	DefaultWindow          = 3 * time.Second
	DefaultZMQWindow       = 5 * time.Second
	DefaultPublishInterval = 5 * time.Millisecond
	DefaultRefreshInterval = 100 * time.Millisecond
	DefaultHeartbeat       = time.Second
	DefaultMaxRanks        = 1024
	DefaultMaxDPRank       = 65535

	maxRetired  = 16   // source instances remembered per worker after they were replaced (rule ID4)
	maxRemovals = 1024 // removals remembered for resuming readers
	maxBatch    = 256  // workers built per hold of the lock (rule SNAP3)
)

// Aggregator is the state of the fleet. See the package comment.
type Aggregator struct {
	// Immutable after New.
	options Options
	limits  validator.Limits
	epoch   string
	start   time.Time
	wake    chan struct{} // one slot: something became dirty

	current atomic.Pointer[load.Publication]
	counts  counts

	mu         sync.Mutex
	order      []*worker // sorted by id; replaced, never changed in place
	byOrigin   []*worker // the same, sorted by origin
	streams    map[*load.Stream]*binding
	handles    uint32 // last handle given
	discovered bool
	reordered  bool      // order changed since the last publication
	removed    []*worker // since the last publication
	dirty      []*worker // content to publish
	looks      bool      // the publisher looks at dirty when the publish interval is over, unasked
	refreshed  []*worker // marks to publish
	deadlines  deadlines
	scratch    scratch
	doubts     []string // ids to be told to Options.Doubt

	publisher publisher // used only by Run
}

// New returns an aggregator with an empty fleet that is warming up, published as version 1.
func New(o Options) (*Aggregator, error) {
	o.Window = orDefault(o.Window, DefaultWindow)
	o.ZMQWindow = orDefault(o.ZMQWindow, DefaultZMQWindow)
	o.PublishInterval = orDefault(o.PublishInterval, DefaultPublishInterval)
	o.RefreshInterval = orDefault(o.RefreshInterval, DefaultRefreshInterval)
	o.Heartbeat = orDefault(o.Heartbeat, DefaultHeartbeat)
	o.MaxRanks = orDefault(o.MaxRanks, DefaultMaxRanks)
	o.MaxDPRank = orDefault(o.MaxDPRank, DefaultMaxDPRank)
	for name, d := range map[string]time.Duration{
		"window": o.Window, "ZMQ window": o.ZMQWindow, "publish interval": o.PublishInterval, "refresh interval": o.RefreshInterval, "heartbeat": o.Heartbeat,
	} {
		if d < time.Millisecond {
			return nil, fmt.Errorf("aggregator: %s is %v, want at least 1ms", name, d)
		}
	}
	if o.MaxRanks < 1 || o.MaxDPRank < 0 {
		return nil, fmt.Errorf("aggregator: max ranks is %d and max dp_rank is %d, want at least 1 and 0", o.MaxRanks, o.MaxDPRank)
	}
	a := &Aggregator{
		options: o,
		limits:  validator.Limits{MaxRanks: o.MaxRanks, MaxDPRank: o.MaxDPRank},
		epoch:   rand.Text()[:16],
		start:   time.Now(),
		wake:    make(chan struct{}, 1),
		streams: make(map[*load.Stream]*binding),
	}
	a.counts.refused = make(map[string]*atomic.Uint64)
	for _, r := range load.Refusals() {
		if r.Of == load.OfReport {
			a.counts.refused[r.Label] = new(atomic.Uint64)
		}
	}
	a.publisher.next = make(chan struct{})
	a.current.Store(&load.Publication{
		Snapshot: &load.Snapshot{
			Epoch: a.epoch, Version: 1, CapturedAt: a.start, Captured: a.Now(), State: load.FleetWarmingUp, StateVersion: 1,
		},
		Next: a.publisher.next,
	})
	return a, nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// Current returns the newest publication. It never waits and allocates nothing (rule SNAP3).
func (a *Aggregator) Current() *load.Publication { return a.current.Load() }

// Now reads the monotonic clock of this epoch (rule FR1); it starts at 1.
func (a *Aggregator) Now() load.Instant { return instant(time.Since(a.start)) }

// instant returns the reading of the epoch's clock so long after its start.
func instant(sinceStart time.Duration) load.Instant {
	return load.Instant(sinceStart.Microseconds()) + 1
}

// wakeUp lets the publisher look again; it never blocks.
func (a *Aggregator) wakeUp() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}
