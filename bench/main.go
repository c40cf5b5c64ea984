// Command bench measures the load monitor next to its ceilings: programs that do the least that anybody can do with the
// same libraries, options and messages. Both run in processes of their own, take turns, and are driven by this process in
// the same way, so that ratios hold although machines differ.
//
// It writes NAME.json, NAME.md and plots into a folder; see bench/README.md for how to read them. `make bench` runs it.
//
// Start reading at plan.go (what is measured), then turns.go (how).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"

	"github.com/loadmonitor/loadmonitor/bench/result"
	"github.com/loadmonitor/loadmonitor/bench/subject"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == subject.Word {
		exit(subject.Main(os.Stdin, os.Stdout))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, os.Args[1:]))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	mode := fs.String("mode", "quick", "quick (a few minutes, few runs) or full (about an hour)")
	only := fs.String("only", "", "regular expression: measure only rows and curves whose id matches, and write no results")
	out := fs.String("out", "bench/results", "folder to write results into")
	docs := fs.String("docs", "", "Markdown file whose marked part is replaced by the table of results, and beside which plots are written")
	profiles := fs.String("profiles", "", "folder to write CPU profiles of the product into, one for each row")
	binary := fs.String("binary", "bin/loadmonitor", "the product, for rows that measure it as a whole")
	if err := fs.Parse(args); err != nil {
		return err
	}
	b := &bench{ctx: ctx, progress: os.Stderr, profiles: *profiles, binary: *binary}
	switch *mode {
	case "quick":
		b.size = quick
	case "full":
		b.size = full
	default:
		return fmt.Errorf("mode is %q: want quick or full", *mode)
	}
	b.size.name = *mode
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("only: %w", err)
	}
	if *profiles != "" {
		if err := os.MkdirAll(*profiles, 0o777); err != nil {
			return err
		}
	}
	report, failed := b.measure(pattern)
	if report == nil {
		return failed
	}
	if *only != "" {
		fmt.Print(report.Markdown(func(c *result.Curve) string { return c.ID }))
		return failed
	}
	fmt.Print(report.Table())
	if err := report.Write(*out, *mode); err != nil {
		return errors.Join(failed, err)
	}
	if *docs != "" {
		return errors.Join(failed, report.Document(*docs))
	}
	return failed
}
