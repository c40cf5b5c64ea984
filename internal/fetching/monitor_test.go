package fetching

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/aggregator"
	"github.com/loadmonitor/loadmonitor/bridge/zmq"
	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/registration"
)

// monitor is the part of a load monitor that fetches: registration asks engines what they are, the bridge subscribes to
// their sockets, the aggregator publishes. Names stand for what the test says.
type monitor struct {
	*aggregator.Aggregator
	t        *testing.T
	registry *registration.Registry
	bridge   *zmq.Bridge

	mu      sync.Mutex
	records map[string][]netip.Addr
	seen    map[string]bool // "handle models running" of every rank in every version
}

func startMonitor(t *testing.T, names map[string]string, specs ...registration.Spec) *monitor {
	m := &monitor{t: t, records: map[string][]netip.Addr{}, seen: map[string]bool{}}
	for name, addr := range names {
		m.point(name, addr)
	}
	var err error
	if m.Aggregator, err = aggregator.New(aggregator.Options{ZMQWindow: 2500 * time.Millisecond, Doubt: func(id string) { m.registry.Probe(id) }}); err != nil {
		t.Fatal(err)
	}
	m.bridge, err = zmq.New(zmq.Options{
		Sink:    m.Aggregator,
		Confirm: func(ctx context.Context, id string) error { return m.registry.Confirm(ctx, id) },
		Silent:  func(id string) { m.registry.Probe(id) },
		Resolve: m.resolve, Silence: time.Second, RetryMax: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.registry, err = registration.New(registration.Options{
		Sink: m.Aggregator, Dialer: dialer{m.bridge}, Static: specs, Listen: netip.MustParseAddrPort("127.0.0.1:50061"),
		ProbeInterval: 500 * time.Millisecond, Timeout: 500 * time.Millisecond, Resolve: m.resolve,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{m.Aggregator.Run, m.bridge.Run, m.registry.Run, m.watch} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return m
}

// dialer is the bridge as registration sees it.
type dialer struct{ bridge *zmq.Bridge }

func (d dialer) SetTargets(ends []registration.RankEndpoint) {
	targets := make([]zmq.Target, len(ends))
	for i, e := range ends {
		targets[i] = zmq.Target(e)
	}
	d.bridge.SetTargets(targets)
}

func (m *monitor) point(name, addr string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records[name] = []netip.Addr{netip.MustParseAddr(addr)}
}

func (m *monitor) resolve(_ context.Context, host string) ([]netip.Addr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if addrs := m.records[host]; addrs != nil {
		return addrs, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// count returns a counter of the bridge, of one label.
func (m *monitor) count(name, label string) (n float64) {
	for _, x := range m.bridge.Metrics() {
		if x.Name == name {
			x.Collect(func(v float64, labels ...load.Label) {
				if labels[0].Value == label {
					n = v
				}
			})
		}
	}
	return n
}

// watch notes whose load is shown in every version.
func (m *monitor) watch(ctx context.Context) error {
	for {
		p := m.Current()
		m.mu.Lock()
		for e := range p.Snapshot.Workers.All() {
			for i := range e.Ranks {
				if running, told := e.Ranks[i].Load.Int(load.NumRunningReqs); told {
					m.seen[fmt.Sprint(e.Handle, e.Worker.Models, running)] = true
				}
			}
		}
		m.mu.Unlock()
		select {
		case <-p.Next:
		case <-ctx.Done():
			return nil
		}
	}
}

// until waits for a version in which the worker fits.
func (m *monitor) until(what string, fits func(*load.Entry) bool) *load.Entry {
	m.t.Helper()
	end := time.After(30 * time.Second)
	for {
		p := m.Current()
		e, _ := p.Snapshot.Workers.Find("w")
		if e != nil && fits(e) {
			return e
		}
		select {
		case <-p.Next:
		case <-end:
			if e == nil {
				m.t.Fatalf("%s: no worker", what)
			}
			m.t.Fatalf("%s: the worker is %+v", what, e.WorkerStatus)
		}
	}
}

// shows reports whether every rank is fresh and runs so many requests.
func shows(running int64) func(*load.Entry) bool {
	return func(e *load.Entry) bool {
		for i := range e.Ranks {
			if n, _ := e.Ranks[i].Load.Int(load.NumRunningReqs); n != running || e.Ranks[i].Freshness != load.Fresh {
				return false
			}
		}
		return e.Freshness == load.Fresh
	}
}
