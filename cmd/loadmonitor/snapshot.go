package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/loadmonitor/loadmonitor/server"
)

func (p *program) newSnapshot() *cobra.Command {
	var addr, output string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Print the newest snapshot of a running monitor",
		Args:  cobra.NoArgs,
	}
	cmd.Flags().StringVar(&addr, "http", server.DefaultHTTPAddr, "HTTP address of the monitor")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Second, "how long to wait for the answer")
	outputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkOutput(output); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		body, age, err := fetchSnapshot(ctx, addr)
		if err != nil {
			return err
		}
		if output == "json" {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", strings.TrimSpace(string(body)))
			return err
		}
		return printSnapshot(cmd.OutOrStdout(), body, age)
	}
	return cmd
}

func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "table", "table or json")
}

func checkOutput(output string) error {
	if output != "table" && output != "json" {
		return fmt.Errorf("output is %q: want table or json", output)
	}
	return nil
}

// fetchSnapshot returns the newest snapshot and how old it was by the monitor's clock when it was sent.
func fetchSnapshot(ctx context.Context, addr string) (body []byte, age time.Duration, err error) {
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(addr, "/")+"/v1/load_monitor/snapshot", nil)
	if err != nil {
		return nil, 0, fmt.Errorf("http is %q: %w", addr, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, 0, fmt.Errorf("no monitor answers (see --http): %w", err)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	if err != nil {
		return nil, 0, fmt.Errorf("read the snapshot: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, 0, fmt.Errorf("%s answered %s: %.200s", req.URL, resp.Status, body)
	}
	ms, err := strconv.ParseInt(resp.Header.Get("Snapshot-Age-Ms"), 10, 64)
	if err != nil {
		return nil, 0, fmt.Errorf("%s does not say how old the snapshot is (Snapshot-Age-Ms): is it a load monitor?", req.URL)
	}
	return body, time.Duration(ms) * time.Millisecond, nil
}

// snapshotJSON is what the table needs of the REST snapshot.
type snapshotJSON struct {
	Epoch      string
	Version    uint64
	CapturedAt string `json:"captured_at"`
	Summary    struct {
		State                                                   string
		Workers, Fresh, Stale, Missing, Incomplete, Unreachable int
	}
	Workers []struct {
		WorkerID      string `json:"worker_id"`
		Mode          string
		Zone          *string
		Freshness     string
		Reason        *string
		Restarts      uint32
		Transport     *string `json:"transport_reason"`
		ReceivedAgeMs *int64  `json:"received_age_ms"`
		ExpectedRanks *int    `json:"expected_ranks"`
		Aggregate     struct {
			RankCount          int      `json:"rank_count"`
			NumRunningReqs     *int64   `json:"num_running_reqs"`
			NumWaitingReqs     *int64   `json:"num_waiting_reqs"`
			WeightedTokenUsage *float64 `json:"weighted_token_usage"`
			GenThroughput      *float64 `json:"gen_throughput"`
		}
	}
}

// printSnapshot writes the table. A version is published when something changes, so the ages in it, which are as of its
// capture, would stand still for a fleet that is dead: age, what has passed since then, is added to them.
func printSnapshot(w io.Writer, body []byte, age time.Duration) error {
	var s snapshotJSON
	if err := json.Unmarshal(body, &s); err != nil {
		return fmt.Errorf("the answer is not a snapshot: %w", err)
	}
	fmt.Fprintf(w, "epoch %s version %d of %s, %s ago, %s: %d of %d workers fresh\n",
		s.Epoch, s.Version, s.CapturedAt, ageCell(age), s.Summary.State, s.Summary.Fresh, s.Summary.Workers)
	var rows []row
	for _, x := range s.Workers {
		r := row{
			worker: x.WorkerID, role: x.Mode, zone: text(x.Zone), freshness: x.Freshness, reason: text(x.Reason),
			running: unknown, waiting: unknown, usage: unknown, throughput: unknown, transport: text(x.Transport),
		}
		expected := 0
		if x.ExpectedRanks != nil {
			expected = *x.ExpectedRanks
		}
		r.ranks = ranksCell(x.Aggregate.RankCount, expected)
		if x.ReceivedAgeMs != nil {
			r.age = ageCell(time.Duration(*x.ReceivedAgeMs)*time.Millisecond + age)
		}
		if v := x.Aggregate.NumRunningReqs; v != nil {
			r.running = strconv.FormatInt(*v, 10)
		}
		if v := x.Aggregate.NumWaitingReqs; v != nil {
			r.waiting = strconv.FormatInt(*v, 10)
		}
		if v := x.Aggregate.WeightedTokenUsage; v != nil {
			r.usage = fmt.Sprintf("%.0f%%", 100**v)
		}
		if v := x.Aggregate.GenThroughput; v != nil {
			r.throughput = fmt.Sprintf("%.0f", *v)
		}
		rows = append(rows, r)
	}
	return writeTable(w, rows)
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
