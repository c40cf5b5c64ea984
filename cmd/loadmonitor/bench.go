package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/loadmonitor/loadmonitor/server"
)

func (p *program) newBench() *cobra.Command {
	var o benchOptions
	var output string
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Put load on a running monitor and say how it did",
		Long: `Put load on a running monitor: engines that register and push reports, watchers that only count bytes, and watchers that
decode as routers do. At the end it removes what it registered and says how many reports were sent, accepted, refused and
lost, how long reports took from their send to a decoding watcher's view, and what a watcher received.

It ends with an error when anything was lost: a report that the monitor did not take, a stream or watch that ended, or a
worker whose newest report a decoding watcher does not show. The engines listen on --engine-host, one port each, or on
loopback under Linux one address each of 127.0.0.0/8; the monitor must reach them there: registration asks them as it asks
real ones. The monitor's own counters are read from --http.`,
		Example: `  loadmonitor serve --max-workers 20000 &
  loadmonitor bench --workers 1000 --ranks 8 --rate 5 --watchers 100 --duration 1m`,
		Args: cobra.NoArgs,
	}
	fs := cmd.Flags()
	fs.StringVar(&o.grpc, "grpc", server.DefaultGRPCAddr, "gRPC address of the monitor")
	fs.StringVar(&o.http, "http", server.DefaultHTTPAddr, "HTTP address of the monitor, for its counters; empty: do without")
	fs.StringVar(&o.engineHost, "engine-host", "127.0.0.1", "address of this machine under which the monitor reaches it")
	fs.IntVar(&o.workers, "workers", 100, "engines")
	fs.IntVar(&o.ranks, "ranks", 8, "DP ranks of each engine")
	fs.Float64Var(&o.rate, "rate", 1, "reports a second of each engine; each says something new")
	fs.IntVar(&o.connections, "connections", 100, "connections that the engines share")
	fs.IntVar(&o.watchers, "watchers", 10, "watchers that only count bytes")
	fs.IntVar(&o.decoding, "decoding-watchers", 1, "watchers that decode and measure delays")
	fs.DurationVar(&o.duration, "duration", 30*time.Second, "how long to send")
	outputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(checkOutput(output), o.check()); err != nil {
			return err
		}
		r, err := runBench(cmd.Context(), &o, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		if output == "json" {
			err = json.NewEncoder(cmd.OutOrStdout()).Encode(r)
		} else {
			err = r.print(cmd.OutOrStdout())
		}
		return errors.Join(err, r.failure())
	}
	return cmd
}

type benchOptions struct {
	grpc, http, engineHost      string
	workers, ranks, connections int
	watchers, decoding          int
	rate                        float64
	duration                    time.Duration
}

func (o *benchOptions) check() error {
	var errs []error
	for _, n := range []struct {
		key          string
		value, least int
	}{
		{"workers", o.workers, 1}, {"ranks", o.ranks, 1}, {"connections", o.connections, 1}, {"watchers", o.watchers, 0},
		{"decoding-watchers", o.decoding, 0},
	} {
		if n.value < n.least {
			errs = append(errs, fmt.Errorf("%s is %d: want at least %d", n.key, n.value, n.least))
		}
	}
	if !(o.rate > 0) || o.rate > 1000 {
		errs = append(errs, fmt.Errorf("rate is %v: want above 0, up to 1000 reports a second", o.rate))
	}
	if o.duration < time.Second {
		errs = append(errs, fmt.Errorf("duration is %v: want at least 1s", o.duration))
	}
	return errors.Join(errs...)
}

// benchResult is what -o json prints. Delays are milliseconds; lost counts whatever did not arrive.
type benchResult struct {
	Workers     int     `json:"workers"`
	Ranks       int     `json:"ranks"`
	Rate        float64 `json:"rate"`
	Connections int     `json:"connections"`
	Watchers    int     `json:"watchers"`
	Decoding    int     `json:"decoding_watchers"`
	Seconds     float64 `json:"seconds"`

	Sent          uint64  `json:"reports_sent"`
	SentPerSecond float64 `json:"reports_per_second"`
	// What the monitor counted meanwhile; null without --http.
	Accepted *uint64  `json:"reports_accepted"`
	Refused  *uint64  `json:"reports_refused"`
	CPU      *float64 `json:"monitor_cpu_cores"`
	Memory   *uint64  `json:"monitor_resident_bytes"`

	Lost struct {
		Reports  uint64 `json:"reports"`           // sent, and neither accepted nor refused
		Streams  int    `json:"streams"`           // report streams that ended
		Watches  int    `json:"watches"`           // raw watches that ended
		Unshown  int    `json:"workers_not_shown"` // whose newest report a decoding watcher does not show
		Refused  uint64 `json:"refused"`
		FirstWhy string `json:"first_reason,omitempty"`
	} `json:"lost"`

	Delay struct {
		Count uint64  `json:"count"`
		P50   float64 `json:"p50_ms"`
		P99   float64 `json:"p99_ms"`
		P999  float64 `json:"p999_ms"`
		Max   float64 `json:"max_ms"`
	} `json:"send_to_view"`
	FirstPicture float64 `json:"first_picture_ms"` // of the slowest decoding watcher

	BytesPerWatcher  float64 `json:"bytes_per_second_and_watcher"`
	FramesPerWatcher float64 `json:"frames_per_second_and_watcher"`

	// How well this process kept its own times: what it sent late or left out is not the monitor's fault.
	LateP99 float64 `json:"generator_late_p99_ms"`
	Skipped uint64  `json:"generator_skipped"`
}

// failure says what was lost; nil: nothing was.
func (r *benchResult) failure() error {
	l := &r.Lost
	if l.Reports == 0 && l.Streams == 0 && l.Watches == 0 && l.Unshown == 0 && l.Refused == 0 {
		return nil
	}
	why := ""
	if l.FirstWhy != "" {
		why = ": " + l.FirstWhy
	}
	return fmt.Errorf("lost: %d reports, %d refused, %d report streams, %d watches, %d workers whose newest report is not shown%s",
		l.Reports, l.Refused, l.Streams, l.Watches, l.Unshown, why)
}

func (r *benchResult) print(w io.Writer) error {
	lines := [][2]string{
		{"load", fmt.Sprintf("%d workers × %d ranks × %g Hz on %d connections, %d raw and %d decoding watchers, %.0f s", r.Workers, r.Ranks, r.Rate, r.Connections, r.Watchers, r.Decoding, r.Seconds)},
		{"reports sent", fmt.Sprintf("%d, %.0f/s", r.Sent, r.SentPerSecond)},
	}
	if r.Accepted != nil {
		lines = append(lines, [2]string{"accepted, refused", fmt.Sprintf("%d, %d", *r.Accepted, *r.Refused)})
		lines = append(lines, [2]string{"monitor", fmt.Sprintf("%.2f cores, %d MB resident", *r.CPU, *r.Memory>>20)})
	}
	if r.Decoding > 0 {
		d := &r.Delay
		lines = append(lines,
			[2]string{"send to view", fmt.Sprintf("p50 %.2f ms, p99 %.2f ms, p99.9 %.2f ms, longest %.2f ms, of %d", d.P50, d.P99, d.P999, d.Max, d.Count)},
			[2]string{"first picture", fmt.Sprintf("%.1f ms", r.FirstPicture)})
	}
	if r.Watchers > 0 {
		lines = append(lines, [2]string{"each raw watcher", fmt.Sprintf("%.0f B/s in %.1f frames/s", r.BytesPerWatcher, r.FramesPerWatcher)})
	}
	lines = append(lines, [2]string{"generator", fmt.Sprintf("p99 %.2f ms late, %d reports left out", r.LateP99, r.Skipped)})
	if r.failure() == nil {
		lines = append(lines, [2]string{"lost", "nothing"})
	}
	for _, l := range lines {
		if _, err := fmt.Fprintf(w, "%-18s %s\n", l[0], l[1]); err != nil {
			return err
		}
	}
	return nil
}
