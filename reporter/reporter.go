package reporter

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/loadmonitor/loadmonitor/load"
)

// Bounds on what a registration may ask for.
const (
	// MaxLease bounds the lease, so that a wrong unit cannot occupy a target for ever.
	MaxLease = 24 * time.Hour
	// MaxInterval bounds the report interval for the same reason.
	MaxInterval = time.Hour
)

// StartRequest asks for reports to one monitor: a registration, or the renewal of one.
type StartRequest struct {
	// Target is where the monitor's push service listens.
	Target netip.AddrPort
	// WorkerAddr is the address under which the monitor reached this engine, in any form that load.ParseAddress reads.
	// Reports carry it normalised as scheme://host:port.
	WorkerAddr string
	// ReportInterval is the time between two reports, at least a millisecond.
	ReportInterval time.Duration
	// LeaseTTL is how long reports go on without a renewal, at least a millisecond.
	LeaseTTL time.Duration
}

// Lease is what a registration was granted.
type Lease struct {
	TTL time.Duration
	// RenewAfter is when to send the same request again: a third of TTL.
	RenewAfter time.Duration
	// Renewed is false when this request created the target.
	Renewed bool
}

// Reporter streams the load of one engine process to the monitors that registered at it. Its methods may be called from
// any goroutine.
type Reporter struct {
	// immutable after New
	opts   Options
	source string // source_instance_id
	logger *slog.Logger

	sequence   atomic.Uint64 // the last one given out; shared by all targets
	sent       atomic.Uint64
	skipped    atomic.Uint64
	reconnects atomic.Uint64

	samples samples

	mu      sync.Mutex
	state   runState
	targets map[netip.AddrPort]*target // those with a live lease whose task has not ended
	ctx     context.Context            // of Run; parent of every task
	tasks   sync.WaitGroup             // grows under mu while state is running, so never beside Wait
}

type runState uint8

const (
	notStarted runState = iota
	running
	stopped
)

// New returns a reporter of a new source instance. It starts nothing.
func New(opts Options) (*Reporter, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	return &Reporter{
		opts:    opts,
		source:  rand.Text(),
		logger:  opts.Logger,
		targets: make(map[netip.AddrPort]*target),
	}, nil
}

// SourceInstance returns the id that tells this life of the engine from every other one.
func (r *Reporter) SourceInstance() string { return r.source }

// Run serves registrations until ctx ends, then cancels every stream and returns nil once all of them are gone. Nothing
// in a stream's end waits for the peer.
func (r *Reporter) Run(ctx context.Context) error {
	r.mu.Lock()
	if r.state != notStarted {
		r.mu.Unlock()
		return ErrAlreadyRunning
	}
	r.state = running
	r.ctx = ctx
	r.mu.Unlock()

	<-ctx.Done()

	r.mu.Lock()
	r.state = stopped
	r.mu.Unlock()
	r.tasks.Wait()
	return nil
}

// StartReporting registers a target or renews it. A renewal takes over the request's interval and lease, and moves the
// next report to one interval from now. The error wraps one of the sentinels of this package.
func (r *Reporter) StartReporting(req StartRequest) (Lease, error) {
	req, err := req.normalise()
	if err != nil {
		return Lease{}, err
	}
	now := time.Now()
	lease := Lease{TTL: req.LeaseTTL, RenewAfter: max(req.LeaseTTL/3, time.Millisecond)}

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != running || r.ctx.Err() != nil {
		return Lease{}, fmt.Errorf("target %s: %w", req.Target, ErrNotRunning)
	}
	if t, ok := r.targets[req.Target]; ok {
		if t.worker != req.WorkerAddr {
			return Lease{}, fmt.Errorf("target %s of worker %s, asked for by %s: %w", req.Target, t.worker, req.WorkerAddr, ErrTargetOwned)
		}
		t.renewLocked(now, req)
		lease.Renewed = true
		return lease, nil
	}
	if len(r.targets) >= r.opts.MaxTargets {
		return Lease{}, fmt.Errorf("target %s beside %d others: %w", req.Target, len(r.targets), ErrTooManyTargets)
	}
	r.addLocked(now, req)
	return lease, nil
}

// addLocked makes the target and starts its task.
func (r *Reporter) addLocked(now time.Time, req StartRequest) {
	ctx, cancel := context.WithCancel(r.ctx)
	t := &target{
		r:       r,
		addr:    req.Target,
		worker:  req.WorkerAddr,
		cancel:  cancel,
		renewed: make(chan struct{}, 1),
		reg:     registration{interval: req.ReportInterval, anchor: now, expires: now.Add(req.LeaseTTL), revision: 1},
		state:   Connecting,
	}
	// A blocked send cannot watch the lease, so the lease ends the task from outside.
	t.lease = time.AfterFunc(req.LeaseTTL, t.expire)
	r.targets[req.Target] = t
	r.tasks.Go(func() {
		t.run(ctx)
		t.lease.Stop()
		cancel()
		r.remove(t)
	})
}

// remove forgets t. A newer target of the same address stays.
func (r *Reporter) remove(t *target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.targets[t.addr] == t {
		delete(r.targets, t.addr)
	}
}

// normalise checks the request and brings its addresses into the one form that is compared.
func (req StartRequest) normalise() (StartRequest, error) {
	ip := req.Target.Addr().Unmap()
	switch {
	case !ip.IsValid():
		return req, fmt.Errorf("ip is missing: want an IP literal that this engine can dial: %w", ErrInvalid)
	case ip.Zone() != "":
		return req, fmt.Errorf("ip %s has a zone: want an address without one: %w", ip, ErrInvalid)
	case ip.IsUnspecified() || ip.IsMulticast():
		return req, fmt.Errorf("ip %s cannot be dialled: want a unicast address: %w", ip, ErrInvalid)
	case req.Target.Port() == 0:
		return req, fmt.Errorf("port is 0: want 1 to 65535: %w", ErrInvalid)
	case req.ReportInterval < time.Millisecond || req.ReportInterval > MaxInterval:
		return req, fmt.Errorf("report interval %v: want 1ms to %v: %w", req.ReportInterval, MaxInterval, ErrInvalid)
	case req.LeaseTTL < time.Millisecond || req.LeaseTTL > MaxLease:
		return req, fmt.Errorf("lease %v: want 1ms to %v: %w", req.LeaseTTL, MaxLease, ErrInvalid)
	}
	if !utf8.ValidString(req.WorkerAddr) {
		return req, fmt.Errorf("worker %q is not valid UTF-8: %w", req.WorkerAddr, ErrInvalid)
	}
	url, _, err := load.ParseAddress(req.WorkerAddr)
	if err != nil {
		return req, fmt.Errorf("worker: %w: %w", err, ErrInvalid)
	}
	req.Target = netip.AddrPortFrom(ip, req.Target.Port())
	req.WorkerAddr = url
	return req, nil
}
