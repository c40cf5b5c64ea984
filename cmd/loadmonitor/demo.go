package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/loadmonitor/loadmonitor/client"
	"github.com/loadmonitor/loadmonitor/internal/engine"
	"github.com/loadmonitor/loadmonitor/registration"
)

func (p *program) newDemo() *cobra.Command {
	var flags fleetFlags
	s := &settings{}
	var duration time.Duration
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a monitor and a simulated fleet in one process",
		Long: `Run a monitor and a simulated fleet in one process, connected by real sockets, with a router's watcher beside them. It
shows a live table on a terminal and a line a second otherwise, and says at the end what was accepted, refused and published,
and how long reports took from an engine's send to the watcher's view.`,
		Args: cobra.NoArgs,
	}
	flags.register(cmd.Flags(), 8, 4, engine.TransportMixed)
	s.register(cmd.Flags())
	cmd.Flags().DurationVar(&duration, "duration", 0, "end after this time; 0: run until interrupted")
	_ = cmd.Flags().Set("log-level", "warn")
	cmd.Flags().Lookup("log-level").DefValue = "warn"
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(flags.check(), s.check()); err != nil {
			return err
		}
		if duration < 0 {
			return fmt.Errorf("duration is %v: want 0 (run until interrupted) or more", duration)
		}
		d := &demo{out: cmd.OutOrStdout(), settings: s, delays: newDelays()}
		logTo := cmd.ErrOrStderr()
		if _, _, table := terminalSize(d.out); table {
			if _, _, same := terminalSize(logTo); same { // lines in between would tear the table
				logTo = &d.recent
				defer func() { _, _ = io.WriteString(cmd.ErrOrStderr(), d.recent.last(recentLimit)) }()
			}
		}
		var err error
		if d.log, err = s.logger(logTo); err != nil {
			return err
		}
		return d.run(cmd.Context(), &flags, duration)
	}
	return cmd
}

// demo is a monitor, a fleet and a watcher in one process.
type demo struct {
	out      io.Writer
	settings *settings
	log      *slog.Logger
	delays   *delays
	recent   recentLines // of the log, while a table is on its terminal

	monitor *monitor
	fleet   *engine.Fleet
	watcher *client.Client
	start   time.Time
}

func (d *demo) run(ctx context.Context, flags *fleetFlags, duration time.Duration) error {
	options, err := flags.options(d.log)
	if err != nil {
		return err
	}
	options.Sending = d.delays.onSend
	options.Logger = nil // what the engines see of the monitor's end is not news here
	if d.fleet, err = engine.NewFleet(options); err != nil {
		return err
	}
	engines, stopEngines := context.WithCancel(context.WithoutCancel(ctx))
	defer stopEngines()
	enginesDone := make(chan error, 1)
	go func() { enginesDone <- d.fleet.Run(engines) }()
	select {
	case err := <-enginesDone:
		return err
	case <-d.fleet.Ready():
	}

	err = d.serve(ctx, options, duration)
	stopEngines()
	if ferr := <-enginesDone; err == nil {
		err = ferr
	}
	return err
}

// serve runs the monitor and the watcher until ctx or the duration ends.
func (d *demo) serve(ctx context.Context, options engine.Options, duration time.Duration) (err error) {
	var specs []registration.Spec
	for i, url := range d.fleet.URLs() {
		specs = append(specs, registration.Spec{URL: url, Role: options.Roles[i%len(options.Roles)], ExpectedRanks: options.Ranks})
	}
	if d.monitor, err = newMonitor(ctx, d.settings, specs, d.log); err != nil {
		return err
	}
	d.watcher, err = client.New(d.monitor.grpcAddr.String(), client.Options{})
	if err != nil {
		d.monitor.close()
		return err
	}
	d.start = time.Now()
	fmt.Fprintf(d.out, "monitor: gRPC %s, HTTP http://%s\n", d.monitor.grpcAddr, d.monitor.httpAddr)
	fmt.Fprintf(d.out, "look:    curl -s http://%s/v1/load_monitor/snapshot\n", d.monitor.httpAddr)
	fmt.Fprintf(d.out, "         %s watch --grpc %s\n", os.Args[0], d.monitor.grpcAddr)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return d.monitor.run(running) })
	watching, stopWatching := context.WithCancel(running)
	defer stopWatching()
	g.Go(func() error { return d.watcher.Run(watching) })
	g.Go(func() error { d.measure(watching); return nil })
	g.Go(func() error {
		defer cancel()
		d.show(running, duration)
		d.summary()
		return nil
	})
	return g.Wait()
}

// measure hands every view to the delay measurement.
func (d *demo) measure(ctx context.Context) {
	for {
		v := d.watcher.View()
		d.delays.onView(v)
		select {
		case <-v.Changed():
		case <-ctx.Done():
			return
		}
	}
}

// show draws the table on a terminal, or writes a line a second, until the time is over.
func (d *demo) show(ctx context.Context, duration time.Duration) {
	var end <-chan time.Time
	if duration > 0 {
		end = time.After(duration)
	}
	if _, _, ok := terminalSize(d.out); ok {
		_, _ = io.WriteString(d.out, "\x1b[2J")
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-end:
			return
		case <-tick.C:
			if width, height, ok := terminalSize(d.out); ok {
				_, _ = io.WriteString(d.out, screenFrame(d.table(height), width, height))
			} else {
				fmt.Fprintln(d.out, d.progress())
			}
		}
	}
}

func (d *demo) progress() string {
	v := d.watcher.View()
	_, p := d.delays.percentiles(0.5, 0.99)
	return fmt.Sprintf("%4.0fs  %s; version %d; %.0f reports accepted; send to view p50 %s p99 %s",
		time.Since(d.start).Seconds(), summaryLine(v.Summary), v.Version, metric(d.monitor.aggregator.Metrics(), "reports_accepted_total"),
		ms(p[0]), ms(p[1]))
}

// table returns what fits of the workers on so many lines, between the line of progress and the end of the log.
func (d *demo) table(height int) string {
	var b strings.Builder
	log := d.recent.last(max(0, min(3, height-8)))
	fmt.Fprintf(&b, "http://%s/v1/load_monitor/snapshot  (ctrl-c ends)\n%s\n\n", d.monitor.httpAddr, d.progress())
	now := time.Now()
	var rows []row
	v := d.watcher.View()
	for w := range v.All() {
		if len(rows) == max(1, height-6-strings.Count(log, "\n")) {
			break
		}
		rows = append(rows, viewRow(w, now))
	}
	_ = writeTable(&b, rows)
	if hidden := v.Len() - len(rows); hidden > 0 {
		fmt.Fprintf(&b, "and %d more\n", hidden)
	}
	b.WriteString(log)
	return b.String()
}

// summary says what happened.
func (d *demo) summary() {
	families := d.monitor.aggregator.Metrics()
	v := d.watcher.View()
	fmt.Fprintf(d.out, "\nfleet                %s\n", summaryLine(v.Summary))
	fmt.Fprintf(d.out, "reports accepted     %.0f\n", metric(families, "reports_accepted_total"))
	refused := refusals(families)
	if len(refused) == 0 {
		fmt.Fprintf(d.out, "reports refused      0\n")
	}
	for _, reason := range slices.Sorted(maps.Keys(refused)) {
		fmt.Fprintf(d.out, "reports refused      %d  %s\n", refused[reason], reason)
	}
	fmt.Fprintf(d.out, "versions published   %.0f\n", metric(families, "versions_published_total"))
	n, p := d.delays.percentiles(0.5, 0.99)
	if n == 0 {
		fmt.Fprintf(d.out, "send to view         not measured: no report reached the watcher\n")
		return
	}
	fmt.Fprintf(d.out, "send to view         p50 %s, p99 %s over %d pushed reports that changed\n", ms(p[0]), ms(p[1]), n)
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2fms", float64(d.Microseconds())/1000) }
