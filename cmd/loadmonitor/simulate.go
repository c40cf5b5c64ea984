package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/loadmonitor/loadmonitor/internal/engine"
)

// fleetFlags are the flags that describe a simulated fleet, for simulate and demo.
type fleetFlags struct {
	workers, ranks, basePort int
	seed                     uint64
	load                     float64
	cycle                    time.Duration
	roles                    string
	control                  string
	transport                string
}

func (f *fleetFlags) register(fs *pflag.FlagSet, workers, ranks int, transport engine.Transport) {
	fs.IntVar(&f.workers, "workers", workers, "engines")
	fs.IntVar(&f.ranks, "ranks", ranks, "DP ranks of each engine")
	fs.Uint64Var(&f.seed, "seed", 1, "makes the numbers; two fleets with one seed see the same demand")
	fs.IntVar(&f.basePort, "base-port", 0, "port of the first engine; the others follow (0: any free ports)")
	fs.Float64Var(&f.load, "load", engine.DefaultLoad, "mean demand as a share of what the engines can serve")
	fs.DurationVar(&f.cycle, "cycle", engine.DefaultCycle, "time between two samples of an engine, below the freshness window; with 1s or more each rank publishes one message a cycle on ZMQ")
	fs.StringVar(&f.roles, "roles", "plain", "roles that the engines get in turn, e.g. prefill:1,decode:3")
	fs.StringVar(&f.transport, "transport", string(transport), "how the engines report: push, zmq or mixed")
	fs.StringVar(&f.control, "control", "", "host:port to take commands at: hang, crash, restart or resume a worker, silence or heat one of its ranks")
}

// check refuses sizes that the engines would take for "by default".
func (f *fleetFlags) check() error {
	var errs []error
	for _, n := range []struct {
		key         string
		value, most int
	}{{"workers", f.workers, engine.MaxWorkers}, {"ranks", f.ranks, engine.MaxRanks}} {
		if n.value < 1 || n.value > n.most {
			errs = append(errs, fmt.Errorf("%s is %d: want 1 to %d", n.key, n.value, n.most))
		}
	}
	if !(f.load > 0 && f.load <= engine.MaxLoad) {
		errs = append(errs, fmt.Errorf("load is %v: want above 0 up to %v, 1 being what an engine can serve", f.load, engine.MaxLoad))
	}
	if f.cycle < engine.MinCycle {
		errs = append(errs, fmt.Errorf("cycle is %v: want at least %v", f.cycle, engine.MinCycle))
	}
	return errors.Join(errs...)
}

func (f *fleetFlags) options(log *slog.Logger) (engine.Options, error) {
	roles, err := engine.ParseRoles(f.roles)
	if err != nil {
		return engine.Options{}, fmt.Errorf("roles: %w", err)
	}
	return engine.Options{
		Workers: f.workers, Ranks: f.ranks, Seed: f.seed, BasePort: f.basePort, Load: f.load, Cycle: f.cycle, Roles: roles, ControlAddr: f.control,
		Transport: engine.Transport(f.transport), Logger: log,
	}, nil
}

func (p *program) newSimulate() *cobra.Command {
	var flags fleetFlags
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Run simulated engines on loopback",
		Long: `Run simulated engines on loopback until told to end. They serve /server_info, /v1/start_reporting and /v1/loads, and
report to every monitor that registers. Once all of them serve, their URLs are printed on standard output, one a line, and
standard output is closed, so that a monitor at the other end of a pipe knows that the list is complete. Everything else
goes to standard error.

With --transport zmq they publish their load instead, on a PUB socket for each rank, some as arrays and some as maps, and
answer start_reporting with 404, as engines without that feature do. With mixed, every third engine pushes, the next
publishes arrays, the next maps. /server_info says where; with --base-port these ports follow those of the engines.

With --control, POST /control/ACTION?worker=W[&rank=R] disturbs an engine, where ACTION is hang, crash, restart, silence,
hot or resume and W is a number from 0 or a URL; GET /control shows how all are.`,
		Example: `  loadmonitor simulate --workers 8 --ranks 4 --control 127.0.0.1:9000 | loadmonitor serve --workers-file -
  curl -X POST 'http://127.0.0.1:9000/control/crash?worker=3'`,
		Args: cobra.NoArgs,
	}
	flags.register(cmd.Flags(), 8, 4, engine.TransportPush)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := flags.check(); err != nil {
			return err
		}
		log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
		options, err := flags.options(log)
		if err != nil {
			return err
		}
		fleet, err := engine.NewFleet(options)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(cmd.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- fleet.Run(ctx) }()
		select {
		case err := <-done:
			return err
		case <-fleet.Ready():
		}
		log.Info("engines serve", "workers", flags.workers, "ranks", flags.ranks, "seed", flags.seed, "control", fleet.ControlURL())
		if err := printURLs(cmd.OutOrStdout(), fleet.URLs()); err != nil {
			cancel()
			<-done
			return err
		}
		return progress(done, func() { log.Info("simulating", "up", countUp(fleet), "of", flags.workers) })
	}
	return cmd
}

// printURLs writes one URL a line and closes standard output where it is a pipe or a file of its own.
func printURLs(w io.Writer, urls []string) error {
	for _, url := range urls {
		if _, err := fmt.Fprintln(w, url); err != nil {
			return fmt.Errorf("print the workers: %w", err)
		}
	}
	if f, ok := w.(*os.File); ok {
		return f.Close()
	}
	return nil
}

func countUp(f *engine.Fleet) int {
	up := 0
	for _, w := range f.State() {
		if w.Condition != engine.Crashed {
			up++
		}
	}
	return up
}

// progress says now and then that a long run is alive, until it is done.
func progress(done <-chan error, say func()) error {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			say()
		}
	}
}
