package zmq

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/loadmonitor/loadmonitor/load"
)

// Sink takes what the bridge receives. Its methods are called by several goroutines, for one worker by one at a time.
type Sink interface {
	// ApplyRank takes one message about one rank, which is only borrowed. The first one on a stream binds it. After an error
	// that says who rather than what, the bridge drops the connection.
	ApplyRank(st *load.Stream, r *load.RankReport) error
	// Release says that the stream has ended.
	Release(st *load.Stream)
	// SetRankNote says why a rank has no data; "" takes that back.
	SetRankNote(workerID string, rank int32, note string)
}

// Options configure a Bridge. Only Sink is required.
type Options struct {
	Sink   Sink
	Logger *slog.Logger

	// Confirm says whether the engine behind a worker's address is the one that is registered. It is called with the first
	// message of every connection, at most once at a time for a worker, in a goroutine of its own; until it has returned nil
	// nothing from that connection counts. It has ConfirmTimeout and must return soon after its context has ended. nil: every
	// endpoint is trusted.
	Confirm func(ctx context.Context, workerID string) error
	// Silent is told of workers one of whose ranks is silent or cannot be dialled, at most every few seconds for a worker,
	// so that registration may look at them again. It must not block.
	Silent func(workerID string)
	// Resolve looks a name up. It must return soon after its context has ended. Default: the Go resolver, which holds no
	// thread.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	Curve   Curve

	// Owners is how many goroutines hold sockets. Default: one for each four CPUs, at most 4. One is enough for thousands of
	// sockets, and fewer cost less per message.
	Owners int
	// MaxSockets bounds the sockets; 0: what the open-file limit allows.
	MaxSockets int
	// RankInterval caps how often messages of one rank are decoded. Default 5 ms.
	RankInterval time.Duration
	// Silence is how long a connection may bring nothing before the rank is dialled anew. Default 5 s: idle engines repeat
	// themselves once a second, and one long step can take a few. A new connection has 3 s for its first message; each
	// connection in a row that stays silent doubles the time, up to a minute.
	Silence time.Duration
	// Heartbeat is how long a peer that libzmq asks whether it is alive has to answer, and the least time between two such
	// questions; with more than a thousand sockets there is more. Default and least 10 s.
	Heartbeat time.Duration
	// DialTimeout bounds a connection attempt, and the wait for the publisher's greeting after it. Default 2 s.
	DialTimeout time.Duration
	// RetryMax is the ceiling of the backoff between dials of one rank. Default 3 s.
	RetryMax time.Duration
}

const (
	defaultRankInterval = 5 * time.Millisecond
	defaultSilence      = 5 * time.Second
	minHeartbeat        = 10 * time.Second
	defaultDialTimeout  = 2 * time.Second
	defaultRetryMax     = 3 * time.Second
	// ConfirmTimeout bounds one call of Options.Confirm.
	ConfirmTimeout = 10 * time.Second
)

// Bridge subscribes to load sockets. See the package comment.
type Bridge struct {
	// immutable after New
	options Options
	log     *slog.Logger
	keys    keys
	start   time.Time
	owners  []*owner
	dialer  *dialer
	seed    maphash.Seed

	counts counts

	// set by Run before any owner runs
	context *zmq4.Context
	limits  limits
	ctx     context.Context
	running sync.WaitGroup // everything that Run must wait for, beside the owners

	places places

	mu    sync.Mutex
	ranks map[targetKey]*rank // what SetTargets said last
	ran   bool
}

// New returns a bridge without targets. It reads the key files of Options.Curve.
func New(o Options) (*Bridge, error) {
	if o.Sink == nil {
		return nil, errors.New("zmq: Options.Sink is missing: nobody would take the load")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Resolve == nil {
		// The resolver of the C library would block a thread for each name that does not answer.
		resolver := &net.Resolver{PreferGo: true}
		o.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return resolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if o.Owners == 0 {
		o.Owners = min(max(runtime.GOMAXPROCS(0)/4, 1), 4)
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
		least time.Duration
	}{
		{"rank interval", &o.RankInterval, defaultRankInterval, time.Millisecond},
		{"silence", &o.Silence, defaultSilence, 10 * time.Millisecond},
		{"heartbeat", &o.Heartbeat, minHeartbeat, minHeartbeat},
		{"dial timeout", &o.DialTimeout, defaultDialTimeout, time.Millisecond},
		{"retry ceiling", &o.RetryMax, defaultRetryMax, time.Millisecond},
	} {
		if *d.value == 0 {
			*d.value = d.def
		}
		if *d.value < d.least {
			return nil, fmt.Errorf("zmq: %s is %v: want at least %v", d.name, *d.value, d.least)
		}
	}
	if o.Owners < 1 || o.MaxSockets < 0 {
		return nil, fmt.Errorf("zmq: %d owners and at most %d sockets: want at least 1, and 0 for no bound", o.Owners, o.MaxSockets)
	}
	if err := socketHandleFound(); err != nil {
		return nil, fmt.Errorf("zmq: %w", err)
	}
	keys, err := o.Curve.load()
	if err != nil {
		return nil, fmt.Errorf("zmq: %w", err)
	}
	b := &Bridge{
		options: o, log: o.Logger, keys: keys, start: time.Now(), seed: maphash.MakeSeed(), ranks: make(map[targetKey]*rank),
	}
	for range o.Owners {
		b.owners = append(b.owners, newOwner(b))
	}
	b.dialer = newDialer(b)
	return b, nil
}

// instant is a reading of the bridge's monotonic clock. 0 means never.
type instant = time.Duration

func (b *Bridge) now() instant { return time.Since(b.start) + 1 }

// Run opens sockets and receives until ctx ends, and returns when everything it started has. It may be called once.
func (b *Bridge) Run(ctx context.Context) error {
	b.mu.Lock()
	ran := b.ran
	b.ran = true
	b.mu.Unlock()
	if ran {
		return errors.New("zmq: Run was called before: make a new bridge")
	}
	files, err := openFileLimit()
	if err != nil {
		return fmt.Errorf("zmq: %w", err)
	}
	b.limits = limitsOf(files, b.options.MaxSockets)
	if b.context, err = newContext(b.limits.sockets); err != nil {
		return fmt.Errorf("zmq: %w", err)
	}
	defer b.context.Term()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.ctx = ctx
	for _, o := range b.owners {
		p, err := newPoller()
		if err != nil {
			return fmt.Errorf("zmq: %w", err)
		}
		defer p.close()
		o.open(p)
	}
	b.places.open(b.limits.sockets)
	b.dialer.slots(b.limits.dials)
	if need := b.limits.needed(0); files < need {
		b.log.Warn("open-file limit is low: raise it (ulimit -n, LimitNOFILE)", "limit", files, "sockets", b.limits.sockets)
	}

	errs := make([]error, len(b.owners))
	var owners sync.WaitGroup
	for i, o := range b.owners {
		owners.Go(func() {
			if errs[i] = o.run(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	b.running.Go(func() { b.dialer.run(ctx) })
	owners.Wait()
	cancel()
	b.running.Wait()
	for _, o := range b.owners {
		o.close()
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("zmq: %w", err)
	}
	return nil
}

// SetTargets says which ranks there are: the full set. Ranks that stay as they were keep their connections; a rank whose
// target changed is dialled anew. Once it has returned, no message of a rank that left is handed on, except for one that
// is being handed on already. It may be called before Run and by any goroutine.
func (b *Bridge) SetTargets(targets []Target) {
	b.mu.Lock()
	defer b.mu.Unlock()
	type change struct{ gone, come []*rank }
	changes := make(map[*owner]*change)
	of := func(o *owner) *change {
		c := changes[o]
		if c == nil {
			c = &change{}
			changes[o] = c
		}
		return c
	}
	next := make(map[targetKey]*rank, len(targets))
	for i := range targets {
		t := &targets[i]
		if next[t.key()] != nil {
			b.log.Warn("two load endpoints are given for one rank: only the first is used", "worker", t.WorkerID, "rank", t.Rank)
			continue
		}
		r := b.ranks[t.key()]
		if r == nil || r.target != *t {
			// Whoever had the rank before may have left a note.
			r = &rank{target: *t, owner: b.ownerOf(t.WorkerID), noted: true}
			of(r.owner).come = append(of(r.owner).come, r)
		}
		next[t.key()] = r
	}
	for key, r := range b.ranks {
		if next[key] != r {
			r.removed.Store(true)
			of(r.owner).gone = append(of(r.owner).gone, r)
		}
	}
	b.ranks = next
	b.counts.targets.Store(int64(len(next)))
	for o, c := range changes {
		o.post(func() {
			for _, r := range c.gone {
				o.remove(r)
			}
			for _, r := range c.come {
				o.add(r)
			}
		})
	}
}

// ownerOf gives all ranks of one worker to one owner, so that what is known of a worker needs no lock.
func (b *Bridge) ownerOf(worker string) *owner {
	return b.owners[maphash.String(b.seed, worker)%uint64(len(b.owners))]
}
