package engine

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/reporter"
	"github.com/loadmonitor/loadmonitor/reporter/pub"
)

// Condition is how an engine is.
type Condition uint8

const (
	Crashed  Condition = iota // no process: nothing listens
	Starting                  // answers with capacity 0
	Running
	Hung // the scheduler stands still; HTTP and the reporter answer with what was known
)

// String returns the word for logs and JSON.
func (c Condition) String() string {
	switch c {
	case Starting:
		return "starting"
	case Running:
		return "running"
	case Hung:
		return "hung"
	}
	return "crashed"
}

// MarshalText writes the word.
func (c Condition) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// engine is one simulated engine over all its process lives.
type engine struct {
	// immutable after newEngine
	index  int
	role   load.Role
	zone   string
	voice  voice
	opts   *Options
	logger *slog.Logger
	orders chan order // crash and restart, obeyed by run
	fail   func(error)

	// written by Fleet.start before anything else of the fleet starts
	addr      string // host:port that is listened on
	url       string // under which it is reached
	publisher *pub.Publisher

	// used only by boot, and so by run once it runs
	process  *process
	loadPort int // of rank 0, from the first life on; 0: any

	mu       sync.Mutex
	life     int // process lives so far
	crashed  bool
	hung     bool
	silent   []bool // ranks whose sample no longer renews
	hot      int    // rank that most requests go to; -1: none
	readyAt  time.Time
	model    *model // nil while crashed or starting
	previous *sample
	outlets  []*outlet          // of this life
	reporter *reporter.Reporter // nil in an engine that publishes
	sockets  *pub.Engine        // nil in an engine that pushes
}

// order is a change of an engine's life.
type order struct {
	action Action
	done   chan error
}

func newEngine(index int, opts *Options, fail func(error)) *engine {
	e := &engine{
		index:   index,
		role:    opts.Roles[index%len(opts.Roles)],
		voice:   opts.voice(index),
		opts:    opts,
		logger:  opts.Logger.With("worker", index),
		orders:  make(chan order),
		fail:    fail,
		crashed: true,
	}
	if len(opts.Zones) > 0 {
		e.zone = opts.Zones[index%len(opts.Zones)]
	}
	return e
}

// listen opens the engine's port and learns its address.
func (e *engine) listen() (net.Listener, error) {
	addr := e.addr
	if addr == "" {
		port := 0
		if e.opts.BasePort > 0 {
			port = e.opts.BasePort + e.index
		}
		addr = net.JoinHostPort(e.opts.Host, strconv.Itoa(port))
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("worker %d: %w: free the port or choose another base port", e.index, err)
	}
	return l, nil
}

// run obeys orders until ctx ends, then shuts the process down.
func (e *engine) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			if e.process != nil {
				e.forget()
				e.process.shutdown()
			}
			return
		case o := <-e.orders:
			o.done <- e.obey(ctx, o.action)
		}
	}
}

func (e *engine) obey(ctx context.Context, a Action) error {
	if a == Crash && e.process == nil {
		return fmt.Errorf("%w: worker %d has crashed before: restart it", ErrConflict, e.index)
	}
	if e.process != nil {
		e.forget() // first, so that no collection meets a closed socket
		e.process.kill()
		e.process = nil
	}
	if a == Crash {
		e.logger.Info("engine crashed")
		return nil
	}
	l, err := e.listen()
	if err != nil {
		return err
	}
	if err := e.boot(ctx, l, time.Now()); err != nil {
		l.Close()
		return err
	}
	return nil
}

// boot begins a process life on an open port, which is the caller's again if it fails.
func (e *engine) boot(ctx context.Context, l net.Listener, now time.Time) error {
	newest, open := &latest{}, &conns{}
	outlets := []*outlet{{name: "latest", sink: newest}}
	var rep *reporter.Reporter
	var sockets *pub.Engine
	var err error
	if e.voice.push {
		rep, err = e.newReporter(newest, open)
	} else if sockets, err = e.bind(ctx); err == nil {
		outlets = append(outlets, &outlet{name: "zmq", sink: &published{engine: sockets}})
	}
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.life++
	e.crashed, e.hung = false, false
	e.silent, e.hot = make([]bool, e.opts.Ranks), -1
	e.readyAt = now.Add(e.opts.StartingFor)
	e.model, e.previous = nil, nil
	e.outlets = outlets
	e.reporter, e.sockets = rep, sockets
	life := e.life
	e.mu.Unlock()

	e.process = e.launch(ctx, l, open, rep, sockets, newest)
	logger := e.logger
	if rep != nil {
		logger = logger.With("source_instance_id", rep.SourceInstance())
	}
	logger.Info("engine started", "url", e.url, "role", e.role.String(), "life", life, "reports", e.voice.String())
	return nil
}

// newReporter makes the reporter of a life that pushes.
func (e *engine) newReporter(newest *latest, open *conns) (rep *reporter.Reporter, err error) {
	var sending func(uint64)
	if e.opts.Sending != nil {
		sending = func(sequence uint64) { e.opts.Sending(rep.SourceInstance(), sequence) }
	}
	return reporter.New(reporter.Options{
		Sending:     sending,
		Sample:      newest.append,
		Role:        e.role,
		Model:       e.opts.Model,
		Zone:        e.zone,
		AdminKey:    e.opts.AdminKey,
		DialOptions: append([]grpc.DialOption{grpc.WithContextDialer(open.dial)}, smallBuffers...),
		Logger:      e.logger,
	})
}

// forget drops what a process takes with it.
func (e *engine) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.crashed, e.hung = true, false
	e.model, e.previous, e.outlets, e.reporter, e.sockets = nil, nil, nil, nil, nil
	e.silent = nil
}

// cycle makes one collection and feeds it to every sink. It is called by one goroutine; fleetTime is the time since the
// fleet's start.
func (e *engine) cycle(now time.Time, fleetTime time.Duration) {
	s, outlets := e.collect(now, fleetTime)
	if s != nil {
		feed(outlets, s, e.logger)
	}
}

// collect moves the model to now and samples it. It returns nil when the engine has nothing new to say.
func (e *engine) collect(now time.Time, fleetTime time.Duration) (*sample, []*outlet) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.crashed {
		return nil, nil
	}
	unixMs := now.UnixMilli()
	s := &sample{taken: now}
	switch t := fleetTime.Seconds(); {
	case now.Before(e.readyAt):
		if e.hung {
			return nil, nil
		}
		s.ranks = make([]load.RankLoad, e.opts.Ranks)
		for i := range s.ranks {
			s.ranks[i] = starting(int32(i), unixMs)
		}
	case e.model == nil:
		e.model = newModel(e.role, e.opts.Ranks, e.opts.Load, e.opts.Seed, e.index, e.life, t)
		fallthrough
	default:
		e.model.hot = e.hot
		e.model.advance(t, !e.hung)
		if e.hung {
			return nil, nil
		}
		s.ranks = e.model.sample(unixMs)
	}
	if e.previous != nil {
		for i, silent := range e.silent {
			if silent {
				s.ranks[i] = e.previous.ranks[i]
			}
		}
	}
	e.previous = s
	return s, e.outlets
}

// conditionLocked returns how the engine is at now.
func (e *engine) conditionLocked(now time.Time) Condition {
	switch {
	case e.crashed:
		return Crashed
	case e.hung:
		return Hung
	case now.Before(e.readyAt):
		return Starting
	}
	return Running
}
