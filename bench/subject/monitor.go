package subject

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/loadmonitor/loadmonitor/aggregator"
	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/server"
	"github.com/loadmonitor/loadmonitor/server/watch"
)

// monitor is the product between its sockets, wired as the binary wires it.
type monitor struct {
	*aggregator.Aggregator
	delays
	watch  *watch.Service
	server *server.Server
}

func newMonitor(c Config) (*monitor, error) {
	m := &monitor{}
	var err error
	if m.Aggregator, err = aggregator.New(aggregator.Options{}); err != nil {
		return nil, err
	}
	workers := make([]*load.Worker, c.Workers)
	for i := range workers {
		url := Address(i)
		origin := strings.TrimPrefix(url, "http://")
		workers[i] = &load.Worker{
			ID: origin, URL: url, Origin: origin, Role: load.RoleRegular, ExpectedRanks: c.Ranks, Transport: load.TransportPush,
		}
	}
	sortByID(workers)
	m.SetWorkers(workers)
	if m.watch, err = watch.New(watch.Options{Source: m.Aggregator}); err != nil {
		return nil, err
	}
	m.server, err = server.New(server.Options{
		Ingest: m, Registry: fixed{}, Snapshots: m.Aggregator, Snapshot: m.watch, Codec: watch.Codec(),
		GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0",
	})
	return m, err
}

// Apply notes when a report was taken.
func (m *monitor) Apply(st *load.Stream, r *load.Report) error {
	err := m.Aggregator.Apply(st, r)
	if err == nil {
		m.note(r.Sequence)
	}
	return err
}

func (m *monitor) run(ctx context.Context, ready func(addr string)) error {
	if err := m.server.Listen(ctx); err != nil {
		return err
	}
	publishing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { _ = m.Aggregator.Run(publishing) })
	ready(m.server.GRPCAddr().String())
	err := m.server.Run(ctx)
	stop()
	running.Wait()
	return err
}

func (m *monitor) count(s *Stats) {
	m.delays.count(s)
	s.Messages = uint64(metric(m.Aggregator.Metrics(), "reports_accepted_total"))
	s.Refused = uint64(metric(m.Aggregator.Metrics(), "reports_refused_total"))
	s.Versions = m.Current().Snapshot.Version
	s.Frames = uint64(metric(m.watch.Metrics(), "watch_frames_sent_total"))
	s.Bytes = uint64(metric(m.watch.Metrics(), "watch_bytes_sent_total"))
	s.EffectiveInterval = seconds(metric(m.watch.Metrics(), "watch_effective_interval_seconds"))
}

// fixed is a registry that cannot be changed.
type fixed struct{}

func (fixed) Registrations() []load.Registration { return nil }

func (fixed) Register(load.Worker) (load.Worker, error) {
	return load.Worker{}, errors.New("the workers of a benchmark are fixed")
}

func (fixed) Deregister(string) error { return errors.New("the workers of a benchmark are fixed") }
