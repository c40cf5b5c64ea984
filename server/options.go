package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc/encoding"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// Snapshots says what is published. Readiness follows the state of the fleet in it.
type Snapshots interface {
	Current() *load.Publication
}

// SnapshotService answers routers. Shutdown makes every open Watch, over gRPC or HTTP, end with UNAVAILABLE and a reason,
// and new ones be refused; it returns without waiting for them.
type SnapshotService interface {
	loadmonitorpb.SnapshotServiceServer
	Shutdown()
}

// Options configures a Server. Ingest, Registry and Snapshots are required; everything else has a default.
type Options struct {
	Ingest    Ingest
	Registry  Registry
	Snapshots Snapshots

	// Snapshot is served as SnapshotService; nil: not at all.
	Snapshot SnapshotService
	// Codec encodes and decodes every message but pushed reports; nil: the standard one.
	Codec encoding.CodecV2
	// REST answers the paths in RESTPaths; nil: nobody does.
	REST RESTHandler
	// Metrics are exposed under /metrics with the prefix loadmonitor_, next to the server's own. Names are distinct.
	Metrics []load.Metric
	// Version and Revision are shown in loadmonitor_build_info.
	Version, Revision string

	// GRPCAddr and HTTPAddr are where to listen: host:port, host or :port; a missing port is the default one, port 0 any
	// free one. Default 127.0.0.1:50061 and 127.0.0.1:8061. A given listener wins over the address.
	GRPCAddr, HTTPAddr         string
	GRPCListener, HTTPListener net.Listener
	// AllowInsecure permits addresses other than loopback (rule LIFE5).
	AllowInsecure bool

	// Grace is how long a shutdown waits for peers before it cuts connections. Default 5 s.
	Grace time.Duration
	// FirstReportTimeout ends a report stream on which nothing arrived. Default 10 s.
	FirstReportTimeout time.Duration
	// BodyTimeout ends an HTTP request whose body does not arrive. Default 10 s.
	BodyTimeout time.Duration

	// Bounds (rule LIFE2).
	MaxMessageBytes         int // of one gRPC message from a peer. Default 1 MiB.
	MaxRanks                int // of one report; the same bound as Ingest's. Default 1024.
	MaxStreamsPerConnection int // concurrent gRPC calls on one connection; further ones wait. Default 1024.
	MaxReportStreams        int // in total. Default 32768.
	MaxConnections          int // for each of the two listeners. Default 65536.
	MaxBodyBytes            int // of one HTTP request. Default 64 KiB.

	// Logger; nil discards.
	Logger *slog.Logger
}

// RESTPaths are the paths that Options.REST answers.
var RESTPaths = []string{"/v1/load_monitor/snapshot", "/v1/load_monitor/watch", "/openapi.json"}

// Default addresses.
const (
	DefaultGRPCAddr = "127.0.0.1:50061"
	DefaultHTTPAddr = "127.0.0.1:8061"
)

// withDefaults returns o with every default filled in, or an error that names the option.
func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Ingest == nil:
		return o, errors.New("server: Options.Ingest is required")
	case o.Registry == nil:
		return o, errors.New("server: Options.Registry is required")
	case o.Snapshots == nil:
		return o, errors.New("server: Options.Snapshots is required")
	}
	o.GRPCAddr = orDefault(o.GRPCAddr, DefaultGRPCAddr)
	o.HTTPAddr = orDefault(o.HTTPAddr, DefaultHTTPAddr)
	o.Grace = orDefault(o.Grace, 5*time.Second)
	o.FirstReportTimeout = orDefault(o.FirstReportTimeout, 10*time.Second)
	o.BodyTimeout = orDefault(o.BodyTimeout, 10*time.Second)
	o.MaxMessageBytes = orDefault(o.MaxMessageBytes, 1<<20)
	o.MaxRanks = orDefault(o.MaxRanks, 1024)
	o.MaxStreamsPerConnection = orDefault(o.MaxStreamsPerConnection, 1024)
	o.MaxReportStreams = orDefault(o.MaxReportStreams, 32768)
	o.MaxConnections = orDefault(o.MaxConnections, 65536)
	o.MaxBodyBytes = orDefault(o.MaxBodyBytes, 64<<10)
	o.Logger = orDefault(o.Logger, slog.New(slog.DiscardHandler))
	for name, v := range map[string]int{
		"Grace": int(o.Grace), "FirstReportTimeout": int(o.FirstReportTimeout), "BodyTimeout": int(o.BodyTimeout),
		"MaxMessageBytes": o.MaxMessageBytes, "MaxRanks": o.MaxRanks, "MaxReportStreams": o.MaxReportStreams,
		"MaxStreamsPerConnection": o.MaxStreamsPerConnection, "MaxConnections": o.MaxConnections, "MaxBodyBytes": o.MaxBodyBytes,
	} {
		if v < 0 {
			return o, fmt.Errorf("server: Options.%s is %d: want more than 0, or 0 for the default", name, v)
		}
	}
	return o, nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}
