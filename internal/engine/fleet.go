package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/loadmonitor/loadmonitor/reporter/pub"
)

// Fleet is a number of simulated engines.
type Fleet struct {
	// immutable after NewFleet
	opts      Options
	engines   []*engine
	publisher *pub.Publisher // of all engines that publish; nil when none does
	fail      context.CancelCauseFunc
	failed    context.Context // ends when an engine broke down
	ready     chan struct{}

	// written by Run before ready is closed
	controlURL string

	once sync.Once // Run was called
}

// NewFleet checks the options. It opens no port and starts nothing.
func NewFleet(opts Options) (*Fleet, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	f := &Fleet{opts: opts, ready: make(chan struct{})}
	if n := opts.sockets(); n > 0 {
		var err error
		if f.publisher, err = pub.New(pub.Options{MaxSockets: n, Logger: opts.Logger}); err != nil {
			return nil, fmt.Errorf("engine: %w", err)
		}
	}
	f.failed, f.fail = context.WithCancelCause(context.Background())
	f.engines = make([]*engine, opts.Workers)
	for i := range f.engines {
		f.engines[i] = newEngine(i, &f.opts, f.fail)
	}
	return f, nil
}

// Ready is closed once every engine and the control API accept connections and every engine has a first sample.
func (f *Fleet) Ready() <-chan struct{} { return f.ready }

// URLs returns the address of every worker, in order. It is known once Ready is closed, and stays over restarts.
func (f *Fleet) URLs() []string {
	urls := make([]string, len(f.engines))
	for i, e := range f.engines {
		urls[i] = e.url
	}
	return urls
}

// ControlURL returns the address of the control API, empty without one. It is known once Ready is closed.
func (f *Fleet) ControlURL() string { return f.controlURL }

// Run opens all ports, runs the engines until ctx ends and returns after everything has ended. It returns nil then, and an
// error when a port cannot be had or an engine breaks down by itself. It can be called once.
func (f *Fleet) Run(ctx context.Context) error {
	err := errors.New("engine: Run was called before: make a new Fleet")
	f.once.Do(func() { err = f.run(ctx) })
	return err
}

func (f *Fleet) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopOnFailure := context.AfterFunc(f.failed, cancel)
	defer stopOnFailure()

	var tasks sync.WaitGroup
	err := f.start(ctx, &tasks)
	if err == nil {
		close(f.ready)
		<-ctx.Done()
	}
	cancel()
	tasks.Wait()
	if err == nil {
		err = context.Cause(f.failed) // nil unless an engine broke down
	}
	return err
}

// start opens every port before the first engine begins, so that a fleet is there as a whole or not at all.
func (f *Fleet) start(ctx context.Context, tasks *sync.WaitGroup) error {
	var listeners []net.Listener
	closeAll := func() {
		for _, l := range listeners {
			l.Close()
		}
	}
	for _, e := range f.engines {
		l, err := e.listen()
		if err != nil {
			closeAll()
			return err
		}
		listeners = append(listeners, l)
		e.addr = l.Addr().String()
		e.url = urlOf(l.Addr())
		e.publisher = f.publisher
	}
	if f.opts.ControlAddr != "" {
		l, err := net.Listen("tcp", f.opts.ControlAddr)
		if err != nil {
			closeAll()
			return fmt.Errorf("control API: %w: free the port or choose another address", err)
		}
		f.controlURL = urlOf(l.Addr())
		f.serveControl(ctx, l, tasks)
	}
	if f.publisher != nil {
		tasks.Go(func() {
			if err := f.publisher.Run(ctx); err != nil {
				f.fail(err)
			}
		})
	}
	begun := time.Now()
	for i, e := range f.engines {
		if err := e.boot(ctx, listeners[i], begun); err != nil {
			listeners = listeners[i:] // those before have an owner
			closeAll()
			return err
		}
		e.cycle(begun, 0)
		tasks.Go(func() { e.run(ctx) })
	}
	tasks.Go(func() { f.drive(ctx, begun) })
	return nil
}

// urlOf returns the URL under which a listener is reached from this machine.
func urlOf(a net.Addr) string {
	addr := a.(*net.TCPAddr).AddrPort()
	ip := addr.Addr().Unmap()
	switch {
	case ip == netip.IPv6Unspecified():
		ip = netip.IPv6Loopback()
	case ip.IsUnspecified():
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return "http://" + netip.AddrPortFrom(ip, addr.Port()).String()
}

// slotLength is the least time between two ticks of the driver.
const slotLength = MinCycle

// drive collects every engine once per cycle. The engines are spread over the cycle in slots, so that neither the
// simulator nor the monitor works in bursts. A cycle that was missed is skipped.
func (f *Fleet) drive(ctx context.Context, begun time.Time) {
	slots := int64(min(len(f.engines), int(f.opts.Cycle/slotLength)))
	step := f.opts.Cycle / time.Duration(slots)
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	var done int64 // slots since begun
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		due := int64(time.Since(begun) / step)
		for done = resumeAt(done, due, slots); done < due; done++ {
			for i := int(done % slots); i < len(f.engines); i += int(slots) {
				now := time.Now()
				f.engines[i].cycle(now, now.Sub(begun))
			}
		}
	}
}

// resumeAt returns the first slot to work off when done slots are behind and due slots should be: no engine is collected
// twice to make up for lost time.
func resumeAt(done, due, slots int64) int64 { return max(done, due-slots) }
