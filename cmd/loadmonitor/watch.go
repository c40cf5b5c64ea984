package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/loadmonitor/loadmonitor/client"
	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/server"
)

func (p *program) newWatch() *cobra.Command {
	var addr, output string
	var roles []string
	var filter client.Filter
	var minInterval, duration time.Duration
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Follow a running monitor as a router does and print what changes",
		Long: `Follow a running monitor as a router does, over gRPC, and print each worker whose freshness, reason or figures change.
It goes on when the monitor is lost, and says why. -o json prints one object a line for each change.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&addr, "grpc", server.DefaultGRPCAddr, "gRPC address of the monitor")
	cmd.Flags().StringArrayVar(&filter.IDs, "id", nil, "only the worker with this id; may be repeated")
	cmd.Flags().StringArrayVar(&filter.Models, "model", nil, "only workers with this model; may be repeated")
	cmd.Flags().StringArrayVar(&filter.Zones, "zone", nil, "only workers in this zone; may be repeated")
	cmd.Flags().StringArrayVar(&roles, "role", nil, "only workers of this role: plain, prefill or decode; may be repeated")
	cmd.Flags().DurationVar(&minInterval, "min-interval", 100*time.Millisecond, "shortest time between two updates; changes of freshness wait for it, too")
	cmd.Flags().DurationVar(&duration, "duration", 0, "end after this time; 0: do not end")
	outputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkOutput(output); err != nil {
			return err
		}
		for _, word := range roles {
			role, ok := load.ParseRole(word)
			if !ok || word == "" {
				return fmt.Errorf("role is %q: want plain, prefill or decode", word)
			}
			filter.Roles = append(filter.Roles, role)
		}
		c, err := client.Dial(addr, client.Options{Filter: filter, MinInterval: minInterval, WithoutRanks: true})
		if err != nil {
			return err
		}
		defer c.Close()
		var end <-chan time.Time
		if duration > 0 {
			end = time.After(duration)
		}
		// An interruption that the link timeout covers wakes nobody: routers have nothing to do about it.
		look := time.NewTicker(200 * time.Millisecond)
		defer look.Stop()
		f := follower{out: cmd.OutOrStdout(), json: output == "json", shown: map[string]*client.Status{}}
		for v := c.View(); ; v = c.View() {
			if err := f.show(v); err != nil {
				return err
			}
			select {
			case <-v.Changed():
			case <-look.C:
			case <-end:
				return nil
			case <-cmd.Context().Done():
				return nil
			}
		}
	}
	return cmd
}

// follower prints the differences between the views it is shown.
type follower struct {
	out   io.Writer
	json  bool
	shown map[string]*client.Status
	fleet fleetShown
	link  string
}

// fleetShown is what a line about the fleet says: another epoch, state or completeness is worth another line.
type fleetShown struct {
	epoch    string
	state    load.FleetState
	complete bool
}

// change is one line of -o json: what happened, and to which worker where it is about one.
type change struct {
	Time    string `json:"time"`  // RFC 3339, the time of this machine
	Event   string `json:"event"` // link, fleet, worker or removed
	Epoch   string `json:"epoch"`
	Version uint64 `json:"version"`

	Link string `json:"link,omitempty"` // up, "interrupted: " and why, or why it is down

	State    string `json:"state,omitempty"` // of the fleet
	Complete *bool  `json:"complete,omitempty"`

	WorkerID       string   `json:"worker_id,omitempty"`
	Freshness      string   `json:"freshness,omitempty"`
	Reason         string   `json:"reason,omitempty"`
	Restarts       *uint32  `json:"restarts,omitempty"`
	RankCount      *uint32  `json:"rank_count,omitempty"`
	NumRunningReqs *int64   `json:"num_running_reqs,omitempty"`
	NumWaitingReqs *int64   `json:"num_waiting_reqs,omitempty"`
	TokenUsage     *float64 `json:"weighted_token_usage,omitempty"`
}

func (f *follower) show(v *client.View) error {
	if link := linkText(v.Link); link != f.link {
		f.link = link
		if err := f.print(v, change{Event: "link", Link: link}); err != nil {
			return err
		}
	}
	if v.Epoch == "" {
		return nil
	}
	if fleet := (fleetShown{v.Epoch, v.State, v.Complete()}); fleet != f.fleet {
		f.fleet = fleet
		if err := f.print(v, change{Event: "fleet", State: v.State.String(), Complete: &fleet.complete}); err != nil {
			return err
		}
	}
	seen := make(map[string]bool, v.Len())
	for w := range v.All() {
		seen[w.ID] = true
		if f.shown[w.ID] == w.Status {
			continue
		}
		f.shown[w.ID] = w.Status
		c := change{
			Event: "worker", WorkerID: w.ID, Freshness: w.Freshness.String(), Reason: w.Reason, Restarts: &w.Restarts,
			RankCount: &w.Aggregate.RankCount,
		}
		if n, ok := w.Aggregate.Int(load.SumRunningReqs); ok {
			c.NumRunningReqs = &n
		}
		if n, ok := w.Aggregate.Int(load.SumWaitingReqs); ok {
			c.NumWaitingReqs = &n
		}
		if u, ok := w.Aggregate.Float(load.WeightedTokenUsage); ok {
			c.TokenUsage = &u
		}
		if err := f.print(v, c); err != nil {
			return err
		}
	}
	for id := range f.shown {
		if !seen[id] {
			delete(f.shown, id)
			if err := f.print(v, change{Event: "removed", WorkerID: id}); err != nil {
				return err
			}
		}
	}
	return nil
}

// linkText says how the monitor is heard. While a link that is up lacks a stream, freshness is still the monitor's word.
func linkText(l client.Link) string {
	switch {
	case !l.Up:
		return printable(strings.TrimPrefix(l.Err.Error(), "client: "))
	case l.Trouble != nil:
		return printable(fmt.Sprintf("interrupted: %v; trying again", l.Trouble))
	}
	return "up"
}

func (f *follower) print(v *client.View, c change) error {
	now := time.Now()
	c.Time, c.Epoch, c.Version = now.UTC().Format("2006-01-02T15:04:05.000Z07:00"), v.Epoch, v.Version
	if f.json {
		return json.NewEncoder(f.out).Encode(c)
	}
	clock := now.Format("15:04:05.000")
	var err error
	switch c.Event {
	case "link":
		_, err = fmt.Fprintf(f.out, "%s  link    %s\n", clock, c.Link)
	case "fleet":
		_, err = fmt.Fprintf(f.out, "%s  fleet   %s, %s, version %d of epoch %s\n", clock, fleetText(c), summaryLine(v.Summary), c.Version, c.Epoch)
	case "removed":
		_, err = fmt.Fprintf(f.out, "%s  removed %s\n", clock, printable(c.WorkerID))
	case "worker":
		w, _ := v.Worker(c.WorkerID)
		r := viewRow(w, now)
		_, err = fmt.Fprintf(f.out, "%s  worker  %-24s %-11s ranks %-5s running %-6s waiting %-6s used %-5s %s\n", clock,
			printable(r.worker), r.freshness, r.ranks, r.running, r.waiting, r.usage, printable(r.reason))
	}
	return err
}

func fleetText(c change) string {
	if *c.Complete {
		return c.State + ", complete"
	}
	return c.State
}
