package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/loadmonitor/loadmonitor/client"
	"github.com/loadmonitor/loadmonitor/load"
)

// row is one worker in a table for people. Unknown figures are shown as "-".
type row struct {
	worker, role, zone, freshness string
	age                           string
	ranks                         string
	running, waiting              string
	usage, throughput             string
	transport                     string
	reason                        string
}

const unknown = "-"

// writeTable writes the rows under a header, aligned. A cell that is not ended by a tab would not count for the width of
// its column, so every row has all its tabs, and the blanks that they leave behind rows without a reason are cut. On a terminal so is what passes its width: the last column is text.
func writeTable(w io.Writer, rows []row) error {
	var aligned strings.Builder
	tw := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "WORKER\tROLE\tZONE\tFRESHNESS\tAGE\tRANKS\tRUNNING\tWAITING\tKV USED\tTOKENS/S\tTRANSPORT\tREASON")
	for _, r := range rows {
		cells := []string{
			r.worker, r.role, orUnknown(r.zone), r.freshness, orUnknown(r.age), r.ranks, r.running, r.waiting, r.usage, r.throughput,
			orUnknown(r.transport), r.reason,
		}
		for i, c := range cells {
			cells[i] = printable(c)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	text := aligned.String()
	if width, _, ok := terminalSize(w); ok {
		text = cutLines(text, width)
	}
	for line := range strings.Lines(text) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// printable keeps control characters, which engines may send in their texts, away from the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return '·'
	}, s)
}

func orUnknown(s string) string {
	if s == "" {
		return unknown
	}
	return s
}

// viewRow returns the row of a worker that the client holds.
func viewRow(w client.Worker, now time.Time) row {
	r := row{
		worker: w.ID, role: w.Role.String(), zone: w.Zone, freshness: w.Freshness.String(), reason: w.Reason,
		ranks:   ranksCell(int(w.Aggregate.RankCount), w.ExpectedRanks),
		running: intFigure(&w.Aggregate, load.SumRunningReqs), waiting: intFigure(&w.Aggregate, load.SumWaitingReqs),
		usage: unknown, throughput: unknown,
	}
	if w.Transport != load.TransportUnspecified {
		r.transport = w.Transport.String()
	}
	if age, ok := w.Age(now); ok {
		r.age = ageCell(age)
	}
	if u, ok := w.Aggregate.Float(load.WeightedTokenUsage); ok {
		r.usage = fmt.Sprintf("%.0f%%", 100*u)
	}
	if t, ok := w.Aggregate.Float(load.SumGenThroughput); ok {
		r.throughput = fmt.Sprintf("%.0f", t)
	}
	return r
}

func ranksCell(reported, expected int) string {
	if expected == 0 {
		return strconv.Itoa(reported)
	}
	return fmt.Sprintf("%d/%d", reported, expected)
}

func intFigure(a *load.Aggregate, f load.IntFigure) string {
	if v, ok := a.Int(f); ok {
		return strconv.FormatInt(v, 10)
	}
	return unknown
}

func ageCell(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	}
	return d.Round(time.Minute).String()
}

// summaryLine says in one line how the fleet is.
func summaryLine(s load.Summary) string {
	parts := []string{fmt.Sprintf("%d workers: %d fresh", s.Workers, s.Fresh)}
	for _, c := range []struct {
		n    int
		word string
	}{{s.Stale, "stale"}, {s.Missing, "missing"}, {s.Incomplete, "incomplete"}, {s.Unreachable, "unreachable"}} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.word))
		}
	}
	return strings.Join(parts, ", ")
}
