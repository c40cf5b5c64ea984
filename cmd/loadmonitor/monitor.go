package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/loadmonitor/loadmonitor/aggregator"
	"github.com/loadmonitor/loadmonitor/bridge/zmq"
	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/registration"
	"github.com/loadmonitor/loadmonitor/server"
	"github.com/loadmonitor/loadmonitor/server/rest"
	"github.com/loadmonitor/loadmonitor/server/watch"
)

// monitor is the rooms of a load monitor, connected: registration says who exists and how each is fed, the server and the
// bridge take reports, the aggregator keeps and publishes them, the server serves them.
type monitor struct {
	aggregator *aggregator.Aggregator
	registry   *registration.Registry
	bridge     *zmq.Bridge
	watch      *watch.Service
	server     *server.Server

	profiler *profiler // nil: profiles are not served

	grpcAddr, httpAddr net.Addr
	listeners          []net.Listener
	grace              time.Duration // bound on a shutdown
	log                *slog.Logger
}

// newMonitor opens the listeners and connects the rooms; nothing runs yet. close must be called when run is not.
func newMonitor(ctx context.Context, s *settings, specs []registration.Spec, log *slog.Logger) (_ *monitor, err error) {
	m := &monitor{grace: s.shutdownGrace, log: log}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	grpcListener, err := server.ListenGRPC(ctx, s.grpcListen, s.allowInsecureListen)
	if err != nil {
		return nil, fmt.Errorf("grpc-listen: %w", err)
	}
	m.listeners = append(m.listeners, grpcListener)
	httpListener, err := server.ListenHTTP(ctx, s.httpListen, s.allowInsecureListen)
	if err != nil {
		return nil, fmt.Errorf("http-listen: %w", err)
	}
	m.listeners = append(m.listeners, httpListener)
	m.grpcAddr, m.httpAddr = grpcListener.Addr(), httpListener.Addr()
	if s.pprofListen != "" {
		if m.profiler, err = newProfiler(ctx, s.pprofListen); err != nil {
			return nil, err
		}
		m.listeners = append(m.listeners, m.profiler.listener)
		log.Info("serving profiles", "http", m.profiler.listener.Addr())
	}

	m.aggregator, err = aggregator.New(aggregator.Options{
		Window:          s.staleAfter,
		ZMQWindow:       s.zmqStaleAfter,
		PublishInterval: s.publishInterval,
		RefreshInterval: s.refreshInterval,
		Heartbeat:       s.heartbeat,
		MaxRanks:        s.maxRanks,
		MaxDPRank:       int32(s.maxDPRank),
		// An engine that restarted has forgotten its lease: ask it again soon instead of at the next renewal.
		StreamLost: func(id string) { m.registry.Nudge(id) },
		Doubt:      func(id string) { m.registry.Probe(id) },
	})
	if err != nil {
		return nil, err
	}
	m.bridge, err = newBridge(s, m.aggregator, func() *registration.Registry { return m.registry }, log)
	if err != nil {
		return nil, err
	}
	listen, err := netip.ParseAddrPort(m.grpcAddr.String())
	if err != nil {
		return nil, fmt.Errorf("grpc-listen: %w", err)
	}
	var advertise netip.Addr
	if s.advertiseIP != "" {
		advertise, err = netip.ParseAddr(s.advertiseIP)
		if err != nil {
			return nil, fmt.Errorf("advertise-ip: %w", err)
		}
	}
	m.registry, err = registration.New(registration.Options{
		Sink:           m.aggregator,
		Dialer:         subscriber{m.bridge},
		Static:         specs,
		Listen:         listen,
		AdvertiseIP:    advertise,
		AdvertisePort:  s.advertisePort,
		ReportInterval: s.reportInterval,
		Lease:          s.lease,
		ProbeInterval:  s.probeInterval,
		MaxWorkers:     s.maxWorkers,
		MaxRanks:       s.maxRanks,
		Logger:         log,
	})
	if err != nil {
		return nil, err
	}
	m.watch, err = watch.New(watch.Options{
		Source:      m.aggregator,
		Logger:      log,
		Heartbeat:   s.heartbeat,
		MaxWatchers: s.maxWatchers,
		SendTimeout: s.watchSendTimeout,
	})
	if err != nil {
		return nil, err
	}
	restHandler, err := rest.New(rest.Options{Source: m.aggregator, StallLimit: s.watchSendTimeout, MaxWatchers: s.maxHTTPWatchers, Logger: log})
	if err != nil {
		return nil, err
	}
	version, revision := buildVersion()
	m.server, err = server.New(server.Options{
		Ingest:                  m.aggregator,
		Registry:                m.registry,
		Snapshots:               m.aggregator,
		Snapshot:                m.watch,
		Codec:                   watch.Codec(),
		REST:                    restHandler,
		Metrics:                 slices.Concat(m.aggregator.Metrics(), m.registry.Metrics(), m.bridge.Metrics(), m.watch.Metrics(), restHandler.Metrics()),
		Version:                 version,
		Revision:                revision,
		GRPCListener:            grpcListener,
		HTTPListener:            httpListener,
		AllowInsecure:           s.allowInsecureListen,
		Grace:                   s.shutdownGrace,
		FirstReportTimeout:      s.firstReportTimeout,
		MaxMessageBytes:         s.maxMessageBytes,
		MaxRanks:                s.maxRanks,
		MaxStreamsPerConnection: s.maxStreamsPerConnection,
		MaxReportStreams:        s.maxReportStreams,
		MaxConnections:          s.maxConnections,
		Logger:                  log,
	})
	return m, err
}

// run runs the rooms until ctx ends or one fails. On the way down renewals stop and peers are told while publication
// goes on, so that what watchers see last is true (rule LIFE1).
func (m *monitor) run(ctx context.Context) error {
	published, stopPublishing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopPublishing()
	publisher := make(chan error, 1)
	go func() { publisher <- m.aggregator.Run(published) }()

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.registry.Run(ctx) })
	g.Go(func() error { return m.bridge.Run(ctx) })
	g.Go(func() error { return m.server.Run(ctx) })
	if m.profiler != nil {
		g.Go(func() error { return m.profiler.run(ctx) })
	}
	g.Go(func() error { followFreshness(ctx, m.log, m.aggregator.Current); return nil })
	g.Go(func() error {
		<-ctx.Done()
		m.log.Info("shutting down", "grace", m.grace)
		return nil
	})
	err := g.Wait()
	stopPublishing()
	if perr := <-publisher; err == nil {
		err = perr
	}
	return err
}

func (m *monitor) close() {
	for _, l := range m.listeners {
		_ = l.Close()
	}
}

// metric returns the sum of a family's values, for summaries.
func metric(families []load.Metric, name string) float64 {
	var total float64
	for _, f := range families {
		if f.Name == name {
			f.Collect(func(v float64, _ ...load.Label) { total += v })
		}
	}
	return total
}

// refusals returns the reasons for which reports were refused, with their counts.
func refusals(families []load.Metric) map[string]uint64 {
	counts := map[string]uint64{}
	for _, f := range families {
		if f.Name == "reports_refused_total" {
			f.Collect(func(v float64, labels ...load.Label) {
				if v > 0 {
					counts[labels[0].Value] = uint64(v)
				}
			})
		}
	}
	return counts
}
