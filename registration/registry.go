package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/loadmonitor/loadmonitor/load"
)

// Defaults of Options.
const (
	DefaultReportInterval = time.Second
	DefaultLease          = 15 * time.Second
	DefaultTimeout        = 2 * time.Second
	DefaultSlowRetry      = time.Minute
	DefaultProbeInterval  = 10 * time.Second
	DefaultMaxWorkers     = 16384
	DefaultMaxRanks       = 1024
	DefaultMaxPosts       = 256
)

// Sink takes what registration decides. The calls for one id come one after the other; none comes after Run returned.
type Sink interface {
	// SetWorkers hands over the full set, sorted by id, ids distinct. The slice is not used again; the workers are shared, and
	// nobody may change them.
	SetWorkers([]*load.Worker)
	// SetNote says why the worker is not registered with its engine, or why nothing feeds it; "" when all is well, or when
	// nothing is known yet.
	SetNote(id, note string)
	// SetRankNote says why a rank whose load would come over ZMQ is not dialled; "" when it is.
	SetRankNote(id string, rank int32, note string)
}

// Options says what to register and how engines reach this monitor. Sink and Listen are required.
type Options struct {
	Sink Sink
	// Dialer subscribes to load sockets. nil: no worker's load is taken over ZMQ.
	Dialer Dialer

	// Static is the configured set. It is refused whole when an entry is wrong or two share an id or an address.
	Static []Spec
	// Discoverers are further sources by the name that load.Registration shows.
	Discoverers map[string]Discoverer

	// Listen is the real address of the gRPC listener that engines report to, with its port.
	Listen netip.AddrPort
	// AdvertiseIP is what engines are told to dial. Unset: Listen's address where it is a specific one, else the local
	// address of the way to that engine.
	AdvertiseIP netip.Addr
	// AdvertisePort is the port that engines are told to dial. 0: Listen's.
	AdvertisePort uint16

	ReportInterval time.Duration // how often engines report. Default 1 s
	Lease          time.Duration // how long an engine reports without renewal. Default 15 s
	Timeout        time.Duration // bound on one request to an engine, name lookup included. Default 2 s
	SlowRetry      time.Duration // pause after a refusal that only a change at the engine can lift. Default 60 s
	ProbeInterval  time.Duration // between two /server_info of an engine, give or take a tenth. Default 10 s

	MaxWorkers int // default 16,384
	MaxRanks   int // bound on ExpectedRanks; the same as for reports. Default 1024
	// MaxPosts bounds the requests in flight: this many renewals of living leases, as many to workers that were not asked
	// before, and as many to those whose last request failed; the same again of /server_info, and there as many to confirm
	// an engine. Default 256.
	MaxPosts int

	// Resolve looks a host name up. nil: Go's resolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)

	Logger *slog.Logger // nil: discard
}

// Registry holds who exists and keeps the leases. Its methods may be called from any goroutine.
type Registry struct {
	// immutable after New
	opts    Options
	log     *slog.Logger
	engines *engines
	trigger chan struct{} // one slot: a pass is wanted
	answers chan struct{} // one slot: a pass is wanted, and may wait for more answers of engines
	stopped chan struct{} // closed when Run has returned

	leaseLoops, probeLoops *family

	leases  leaseCounts
	changes struct{ added, changed, removed atomic.Uint64 } // workers, over all passes
	invalid atomic.Uint64                                   // entries of discovery that were not valid
	leftOut atomic.Int64                                    // workers over the bound, as of the last pass

	mu      sync.Mutex
	running bool
	static  sourceSet
	api     map[string]*target   // by id
	found   map[string]sourceSet // by the name of the discoverer
	waiting map[string]struct{}  // discoverers that the first pass waits for
	next    *pass                // takes in all that is changed from now on
	entries []*entry             // as of the last pass, sorted by id; replaced by Run only, never changed in place

	// used only by Run
	discovered bool               // the sink has a first set
	published  []*choice          // what the sink has
	overflow   bool               // an episode of too many workers is going on
	dialled    bool               // the dialer has a first set
	ends       []RankEndpoint     // as the dialer has them
	refused    map[rankKey]string // as the sink has them
}

// entry is one registered worker and its loops.
type entry struct {
	target *target
	known  unique.Handle[known] // of its engine, when the choice was made
	choice *choice
	lease  *lease
	probe  *probe
}

// pass is one reconciliation. done is closed after the sink has taken its result.
type pass struct{ done chan struct{} }

func newPass() *pass { return &pass{done: make(chan struct{})} }

// New checks the options; it starts nothing. Errors name option, value and remedy, or entry, key, value and remedy.
func New(o Options) (*Registry, error) {
	if o.Sink == nil {
		return nil, errors.New("registration: Sink is not set")
	}
	o.ReportInterval = cmp.Or(o.ReportInterval, DefaultReportInterval)
	o.Lease = cmp.Or(o.Lease, DefaultLease)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.SlowRetry = cmp.Or(o.SlowRetry, DefaultSlowRetry)
	o.ProbeInterval = cmp.Or(o.ProbeInterval, DefaultProbeInterval)
	o.MaxWorkers = cmp.Or(o.MaxWorkers, DefaultMaxWorkers)
	o.MaxRanks = cmp.Or(o.MaxRanks, DefaultMaxRanks)
	o.MaxPosts = cmp.Or(o.MaxPosts, DefaultMaxPosts)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("registration: %w", err)
	}
	static, err := checkStatic(o.Static, o.MaxRanks, o.MaxWorkers)
	if err != nil {
		return nil, err
	}
	r := &Registry{
		opts:    o,
		log:     o.Logger,
		engines: newEngines(&o),
		trigger: make(chan struct{}, 1),
		answers: make(chan struct{}, 1),
		stopped: make(chan struct{}),
		static:  newSourceSet(static),
		api:     make(map[string]*target),
		found:   make(map[string]sourceSet),
		waiting: make(map[string]struct{}),
		next:    newPass(),

		leaseLoops: newFamily(),
		probeLoops: newFamily(),
	}
	for name := range o.Discoverers {
		r.waiting[name] = struct{}{}
	}
	return r, nil
}

func (o Options) check() error {
	if !o.Listen.IsValid() || o.Listen.Port() == 0 {
		return fmt.Errorf("listen address %v: want the gRPC listener's address with its port", o.Listen)
	}
	if o.AdvertiseIP.IsValid() {
		if o.AdvertiseIP.IsUnspecified() || o.AdvertiseIP.IsMulticast() || o.AdvertiseIP.Zone() != "" {
			return fmt.Errorf("advertise address %v: want an address that engines can dial", o.AdvertiseIP)
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"report interval", o.ReportInterval}, {"lease", o.Lease}, {"timeout", o.Timeout}, {"slow retry", o.SlowRetry},
		{"probe interval", o.ProbeInterval},
	} {
		// The engine's protocol counts in whole milliseconds.
		if d.value < time.Millisecond {
			return fmt.Errorf("%s %v: want at least 1ms", d.name, d.value)
		}
	}
	// A renewal re-anchors the engine's next report to one interval from then: renewing that often starves the reports.
	if o.ReportInterval >= o.Lease/3 {
		return fmt.Errorf("report interval %v and lease %v: the interval must be under a third of the lease (%v)",
			o.ReportInterval, o.Lease, o.Lease/3)
	}
	if o.MaxWorkers < 1 || o.MaxRanks < 1 || o.MaxPosts < 1 {
		return fmt.Errorf("max workers %d, max ranks %d, max posts %d: want at least 1", o.MaxWorkers, o.MaxRanks, o.MaxPosts)
	}
	if _, taken := o.Discoverers[SourceConfig]; taken {
		return fmt.Errorf("discoverer %q: the name is taken", SourceConfig)
	}
	if _, taken := o.Discoverers[SourceAPI]; taken {
		return fmt.Errorf("discoverer %q: the name is taken", SourceAPI)
	}
	return nil
}

// Run keeps the set and the leases until ctx ends, then returns nil after everything it started has returned. It can be
// called once.
func (r *Registry) Run(ctx context.Context) error {
	r.mu.Lock()
	if r.running {
		r.mu.Unlock()
		return errors.New("registration: Run was called twice")
	}
	r.running = true
	r.mu.Unlock()
	defer close(r.stopped)

	ctx, cancel := context.WithCancel(ctx)
	r.leaseLoops.ctx, r.probeLoops.ctx = ctx, ctx
	var discoverers sync.WaitGroup
	for name, d := range r.opts.Discoverers {
		discoverers.Go(func() { r.discover(ctx, name, d) })
	}
	if r.firstSets(ctx) {
		r.wake()
	}
	last := time.Now()     // when a pass ended
	var took time.Duration // that pass
	var next time.Time     // when another one is due; zero: none is
	due := time.NewTimer(0)
	due.Stop()
	plan := func(pause time.Duration) {
		if at := last.Add(max(pause, passShare*took)); next.IsZero() || at.Before(next) {
			next = at
			due.Reset(time.Until(at))
		}
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			continue
		case <-r.answers:
			plan(answersPause)
			continue
		case <-r.trigger:
			plan(0)
			continue
		case <-due.C:
		}
		next = time.Time{}
		began := time.Now()
		r.reconcile()
		last = time.Now()
		took = last.Sub(began)
	}
	cancel()
	for _, e := range r.entries {
		e.lease.loop.stop()
		e.probe.loop.stop()
	}
	r.leaseLoops.running.Wait()
	r.probeLoops.running.Wait()
	discoverers.Wait()
	r.engines.close()
	return nil
}

// A pass costs what the whole fleet costs, at the start all engines answer within a second, and thousands of workers may be
// registered one by one. So passes follow one another with pauses.
const (
	// answersPause is the least time between a pass and the next one for the sake of engines' answers.
	answersPause = 20 * time.Millisecond
	// passShare is how many times as long as a pass took the pause after it is at least.
	passShare = 4
)

// learn asks for a pass because of what an engine answered.
func (r *Registry) learn() {
	select {
	case r.answers <- struct{}{}:
	default:
	}
}

// entryOf returns the entry of a worker as of the last pass; nil: there is none.
func (r *Registry) entryOf(id string) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.entryLocked(id)
}

func (r *Registry) entryLocked(id string) *entry {
	i, found := slices.BinarySearchFunc(r.entries, id, func(e *entry, id string) int { return cmp.Compare(e.target.worker.ID, id) })
	if !found {
		return nil
	}
	return r.entries[i]
}

// wake asks for a pass. Wishes that come before it begins share it.
func (r *Registry) wake() {
	select {
	case r.trigger <- struct{}{}:
	default:
	}
}
