package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/loadmonitor/loadmonitor/aggregator"
	"github.com/loadmonitor/loadmonitor/registration"
	"github.com/loadmonitor/loadmonitor/server"
)

// settings is the configuration of a monitor. Each field has one flag, one environment variable and one key in the
// configuration file, all of the same name (see config.go).
type settings struct {
	grpcListen, httpListen string
	allowInsecureListen    bool
	pprofListen            string
	advertiseIP            string
	advertisePort          uint16

	workers     []string
	workersFile string
	specs       []registration.Spec // the list "workers" of the configuration file

	curveServerKey, curvePublicKeyFile, curveSecretKeyFile string

	staleAfter, zmqStaleAfter                   time.Duration
	reportInterval, lease                       time.Duration
	probeInterval                               time.Duration
	publishInterval, refreshInterval, heartbeat time.Duration
	shutdownGrace, firstReportTimeout           time.Duration
	watchSendTimeout                            time.Duration

	maxWorkers, maxRanks, maxDPRank                          int
	maxMessageBytes, maxStreamsPerConnection, maxConnections int
	maxZMQSockets                                            int
	maxReportStreams, maxWatchers, maxHTTPWatchers           int

	logLevel, logFormat string
}

// register declares the flags with their defaults.
func (s *settings) register(fs *pflag.FlagSet) {
	fs.StringVar(&s.grpcListen, "grpc-listen", server.DefaultGRPCAddr, "where engines report and routers watch")
	fs.StringVar(&s.httpListen, "http-listen", server.DefaultHTTPAddr, "where people and scripts read, and metrics are scraped")
	fs.BoolVar(&s.allowInsecureListen, "allow-insecure-listen", false, "permit addresses other than loopback without TLS or tokens")
	fs.StringVar(&s.pprofListen, "pprof-listen", "", "loopback host:port where profiles of this process are served (default: nowhere)")
	fs.StringVar(&s.advertiseIP, "advertise-ip", "", "IP address that engines are told to dial (default: the local address of the way to each engine)")
	fs.Uint16Var(&s.advertisePort, "advertise-port", 0, "port that engines are told to dial (default: the port of --grpc-listen)")

	fs.StringVar(&s.curveServerKey, "curve-server-key", "", "CURVE public key of ZMQ publishers without one of their own, 40 characters of Z85")
	fs.StringVar(&s.curvePublicKeyFile, "curve-public-key-file", "", "file with the monitor's CURVE public key")
	fs.StringVar(&s.curveSecretKeyFile, "curve-secret-key-file", "", "file with the monitor's CURVE secret key (default: a pair for the life of the process)")

	fs.DurationVar(&s.staleAfter, "stale-after", aggregator.DefaultWindow, "how long a report keeps a rank fresh; at least three report intervals")
	fs.DurationVar(&s.zmqStaleAfter, "zmq-stale-after", aggregator.DefaultZMQWindow, "the same for ranks fed over ZMQ, whose publishers may be silent for one long step; at least 2.5s")
	fs.DurationVar(&s.reportInterval, "report-interval", registration.DefaultReportInterval, "how often engines are asked to report; less than a third of the lease")
	fs.DurationVar(&s.lease, "lease", 15*time.Second, "how long an engine reports without renewal")
	fs.DurationVar(&s.probeInterval, "probe-interval", registration.DefaultProbeInterval, "how often engines are asked what they are (/server_info), give or take a tenth")
	fs.DurationVar(&s.publishInterval, "publish-interval", aggregator.DefaultPublishInterval, "shortest time between two versions under load")
	fs.DurationVar(&s.refreshInterval, "refresh-interval", aggregator.DefaultRefreshInterval, "how often marks of unchanged loads are published")
	fs.DurationVar(&s.heartbeat, "heartbeat", aggregator.DefaultHeartbeat, "how often watchers hear that the monitor lives")
	fs.DurationVar(&s.shutdownGrace, "shutdown-grace", 5*time.Second, "how long a shutdown waits for peers")
	fs.DurationVar(&s.firstReportTimeout, "first-report-timeout", 10*time.Second, "how long a report stream may stay silent at its start")
	fs.DurationVar(&s.watchSendTimeout, "watch-send-timeout", 10*time.Second, "how long a watcher may take nothing before it is ended")

	fs.IntVar(&s.maxWorkers, "max-workers", registration.DefaultMaxWorkers, "registered workers")
	fs.IntVar(&s.maxRanks, "max-ranks", aggregator.DefaultMaxRanks, "ranks in one report")
	fs.IntVar(&s.maxDPRank, "max-dp-rank", aggregator.DefaultMaxDPRank, "highest dp_rank")
	fs.IntVar(&s.maxMessageBytes, "max-message-bytes", 1<<20, "size of one gRPC message from a peer")
	fs.IntVar(&s.maxStreamsPerConnection, "max-streams-per-connection", 1024, "concurrent gRPC calls on one connection")
	fs.IntVar(&s.maxConnections, "max-connections", 65536, "connections to each of the two listeners")
	fs.IntVar(&s.maxZMQSockets, "max-zmq-sockets", 0, "ranks subscribed to over ZMQ (default: what the limit of open files allows)")
	fs.IntVar(&s.maxReportStreams, "max-report-streams", 32768, "report streams in total")
	fs.IntVar(&s.maxWatchers, "max-watchers", 4096, "watchers over gRPC in total")
	fs.IntVar(&s.maxHTTPWatchers, "max-http-watchers", 64, "watchers over HTTP in total")

	fs.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&s.logFormat, "log-format", "text", "text or json")
}

// check refuses impossible values, each named with its key and value. Rules about more than one value name both.
func (s *settings) check() error {
	var errs []error
	bad := func(key string, value any, want string) {
		errs = append(errs, fmt.Errorf("%s is %v: %s", key, value, want))
	}
	for _, d := range []struct {
		key   string
		value time.Duration
		least time.Duration
	}{
		{"stale-after", s.staleAfter, time.Millisecond}, {"zmq-stale-after", s.zmqStaleAfter, 2500 * time.Millisecond}, {"report-interval", s.reportInterval, time.Millisecond},
		{"lease", s.lease, time.Millisecond}, {"probe-interval", s.probeInterval, 100 * time.Millisecond}, {"publish-interval", s.publishInterval, time.Millisecond},
		{"refresh-interval", s.refreshInterval, time.Millisecond}, {"heartbeat", s.heartbeat, time.Millisecond},
		{"shutdown-grace", s.shutdownGrace, time.Millisecond}, {"first-report-timeout", s.firstReportTimeout, time.Millisecond},
		{"watch-send-timeout", s.watchSendTimeout, time.Millisecond},
	} {
		if d.value < d.least {
			bad(d.key, d.value, fmt.Sprintf("want at least %v", d.least))
		}
	}
	for _, n := range []struct {
		key   string
		value int
		least int
		most  int
	}{
		{"max-workers", s.maxWorkers, 1, 1 << 20}, {"max-ranks", s.maxRanks, 1, 1 << 16}, {"max-dp-rank", s.maxDPRank, 1, 1<<31 - 1},
		{"max-message-bytes", s.maxMessageBytes, 1024, 64 << 20}, {"max-streams-per-connection", s.maxStreamsPerConnection, 1, 1 << 20},
		{"max-connections", s.maxConnections, 1, 1 << 20}, {"max-report-streams", s.maxReportStreams, 1, 1 << 20},
		{"max-zmq-sockets", s.maxZMQSockets, 0, 1 << 20}, {"max-watchers", s.maxWatchers, 1, 1 << 20}, {"max-http-watchers", s.maxHTTPWatchers, 1, 1 << 20},
	} {
		if n.value < n.least || n.value > n.most {
			bad(n.key, n.value, fmt.Sprintf("want %d to %d", n.least, n.most))
		}
	}
	if s.advertiseIP != "" {
		if ip, err := netip.ParseAddr(s.advertiseIP); err != nil || ip.IsUnspecified() {
			bad("advertise-ip", s.advertiseIP, "want an IP address that engines can dial")
		}
	}
	if len(errs) == 0 {
		if s.staleAfter < 3*s.heartbeat {
			errs = append(errs, fmt.Errorf("stale-after is %v and heartbeat is %v: watchers notice a dead monitor after three heartbeats, and by then nothing of it may count as fresh", s.staleAfter, s.heartbeat))
		}
		if s.staleAfter < 3*s.reportInterval {
			errs = append(errs, fmt.Errorf("stale-after is %v and report-interval is %v: a report must keep a rank fresh for at least three report intervals (rule FR7)", s.staleAfter, s.reportInterval))
		}
		if s.reportInterval >= s.lease/3 {
			errs = append(errs, fmt.Errorf("report-interval is %v and lease is %v: the interval must be less than a third of the lease, because each renewal moves the next report", s.reportInterval, s.lease))
		}
	}
	if _, err := s.logger(io.Discard); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// logger returns the log that the settings ask for.
func (s *settings) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return nil, fmt.Errorf("log-level is %q: want debug, info, warn or error", s.logLevel)
	}
	o := &slog.HandlerOptions{Level: level}
	switch s.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, fmt.Errorf("log-format is %q: want text or json", s.logFormat)
}

// allSpecs returns the configured workers of every source: --worker, --workers-file and the configuration file.
func (s *settings) allSpecs(stdin io.Reader) ([]registration.Spec, error) {
	var specs []registration.Spec
	for i, url := range s.workers {
		where := "--worker " + url
		if strings.Contains(url, "@") {
			where = fmt.Sprintf("--worker number %d", i+1) // errors never show a password
		}
		specs = append(specs, registration.Spec{URL: url, Where: where})
	}
	if s.workersFile != "" {
		more, err := registration.ReadWorkers(s.workersFile, stdin)
		if err != nil {
			return nil, err
		}
		specs = append(specs, more...)
	}
	return append(specs, s.specs...), nil
}
