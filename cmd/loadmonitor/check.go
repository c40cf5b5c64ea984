package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"

	"github.com/loadmonitor/loadmonitor/aggregator"
	"github.com/loadmonitor/loadmonitor/registration"
	"github.com/loadmonitor/loadmonitor/server"
)

// registerWorkers declares the flags that say which engines there are.
func (s *settings) registerWorkers(fs *pflag.FlagSet) {
	fs.StringArrayVar(&s.workers, "worker", nil, "URL of an engine, http://host:port; may be repeated")
	fs.StringVar(&s.workersFile, "workers-file", "", "file with workers: one URL a line, or a YAML list; - reads standard input")
}

// checkStart refuses what a start would refuse, and starts nothing: a configuration that is printed can be started,
// provided that its ports are free, its CURVE keys can be read, and profiles are served on loopback.
func (s *settings) checkStart(ctx context.Context, specs []registration.Spec) error {
	var errs []error
	if err := server.CheckGRPC(ctx, s.grpcListen, s.allowInsecureListen); err != nil {
		errs = append(errs, fmt.Errorf("grpc-listen: %w", err))
	}
	if err := server.CheckHTTP(ctx, s.httpListen, s.allowInsecureListen); err != nil {
		errs = append(errs, fmt.Errorf("http-listen: %w", err))
	}
	sink, err := aggregator.New(aggregator.Options{
		Window: s.staleAfter, PublishInterval: s.publishInterval, RefreshInterval: s.refreshInterval, Heartbeat: s.heartbeat,
		MaxRanks: s.maxRanks, MaxDPRank: int32(s.maxDPRank),
	})
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	_, err = registration.New(registration.Options{
		Sink: sink, Static: specs,
		Listen:         netip.MustParseAddrPort("127.0.0.1:1"), // of the listener that is not opened
		ReportInterval: s.reportInterval, Lease: s.lease, MaxWorkers: s.maxWorkers, MaxRanks: s.maxRanks,
	})
	return errors.Join(append(errs, err)...)
}
