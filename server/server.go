package server

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/loadmonitor/loadmonitor/load"
)

// Server serves gRPC on one listener and HTTP on another.
type Server struct {
	// immutable after New
	opts    Options
	log     *slog.Logger
	grpc    *grpc.Server
	http    *http.Server
	reports *reports
	ready   *readiness
	unread  *unread

	grpcConns, httpConns *boundedListener // without a listener until Listen
	httpHandlers         sync.WaitGroup   // goroutines of HTTP connections; complete when Serve has returned

	listening bool // used only by Listen
	ran       atomic.Bool
}

// New returns a server that does not listen yet, or an error that names the option.
func New(opts Options) (*Server, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := checkGRPCStream(); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	ep := newEpisodes(o.Logger)
	unread := newUnread(ep)
	s := &Server{
		opts: o,
		log:  o.Logger,
		reports: &reports{
			ingest:      o.Ingest,
			log:         o.Logger,
			episodes:    ep,
			maxRanks:    o.MaxRanks,
			maxMessage:  o.MaxMessageBytes,
			firstReport: o.FirstReportTimeout,
			ended:       newTally(streamEnds()...),
			open:        newOpenStreams(o.MaxReportStreams),
		},
		ready:     newReadiness(),
		unread:    unread,
		grpcConns: &boundedListener{name: "grpc", max: int64(o.MaxConnections), episodes: ep, ended: unread.ended},
		httpConns: &boundedListener{name: "http", max: int64(o.MaxConnections), episodes: ep},
	}
	registry := &registry{r: o.Registry}
	if s.grpc, err = s.newGRPC(registry); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	metrics, err := newMetrics(slices.Concat(
		o.Metrics,
		s.reports.metrics(),
		s.ready.metrics(),
		s.unread.metrics(),
		connectionMetrics(s.grpcConns, s.httpConns),
		[]load.Metric{buildInfo(o.Version, o.Revision)},
	))
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	gateway, err := newGateway(registry)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.http = newHTTP(&o, s.ready, gateway, metrics)
	s.http.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.httpHandlers.Add(1)
		case http.StateClosed, http.StateHijacked:
			s.httpHandlers.Done()
		}
	}
	return s, nil
}
