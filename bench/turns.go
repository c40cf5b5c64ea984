package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loadmonitor/loadmonitor/bench/result"
	"github.com/loadmonitor/loadmonitor/bench/subject"
)

// size is how much is measured.
type size struct {
	name   string
	runs   int           // of product and ceiling each, for a row
	points int           // runs for one point of a curve
	warm   time.Duration // before a window
	window time.Duration // in which is measured
	steady time.Duration // length of the run with the whole binary
	large  bool          // measure everything, also what takes long to set up
}

var (
	quick = size{runs: 2, points: 1, warm: 500 * time.Millisecond, window: time.Second, steady: 5 * time.Second}
	full  = size{runs: 10, points: 2, warm: time.Second, window: 2 * time.Second, steady: 5 * time.Minute, large: true}
)

// bench is one run of the benchmark. It is used by one goroutine.
type bench struct {
	ctx      context.Context
	size     size
	progress io.Writer
	profiles string // folder; empty: none are taken
	binary   string

	row     string       // id of what is being measured
	cpus    *unix.CPUSet // of subjects; nil: all
	profile bool         // the next run of the product is to be profiled

	failures []error // of what could not be measured
}

// figures are what one run measured, by the names of its row's figures; own is the row's own.
type figures map[string]float64

const own = ""

// shown is a figure of a row, in the order of its table.
type shown struct{ name, unit string }

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.progress, "%s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
}

// turns lets product and ceiling run in turn and completes the row with what they measured. Without a ceiling the product
// runs alone.
func (b *bench) turns(row *result.Row, names []shown, product, ceiling func() (figures, error)) error {
	var ours, theirs []figures
	for i := range b.size.runs {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		b.profile = b.profiles != "" && i == 0
		p, err := product()
		if err != nil {
			return fmt.Errorf("%s, run %d of the product: %w", row.ID, i+1, err)
		}
		ours = append(ours, p)
		text := fmt.Sprintf("%.4g %s", p[own], row.Unit)
		b.profile = false
		if ceiling != nil {
			c, err := ceiling()
			if err != nil {
				return fmt.Errorf("%s, run %d of the ceiling: %w", row.ID, i+1, err)
			}
			theirs = append(theirs, c)
			text += fmt.Sprintf(", ceiling %.4g", c[own])
		}
		b.say("%s %d/%d: %s", row.ID, i+1, b.size.runs, text)
	}
	row.Product, row.Ceiling = series(ours, own), series(theirs, own)
	row.Ratio = result.Ratios(row.Product, row.Ceiling)
	for _, n := range names {
		row.Figures = append(row.Figures, result.Figure{Name: n.name, Unit: n.unit, Product: series(ours, n.name), Ceiling: series(theirs, n.name)})
	}
	return nil
}

// few lowers the number of runs, to one at least, for what takes long; the result takes it back.
func (b *bench) few(runs int) (undo func()) {
	before := b.size.runs
	b.size.runs = max(1, runs)
	return func() { b.size.runs = before }
}

// series collects one figure of several runs; runs that did not measure it are left out.
func series(runs []figures, name string) result.Series {
	var values []float64
	for _, r := range runs {
		if v, ok := r[name]; ok {
			values = append(values, v)
		}
	}
	return result.NewSeries(values)
}

// profileFile is where the CPU profile of the run that goes on belongs; empty: it is not profiled.
func (b *bench) profileFile() string {
	if !b.profile {
		return ""
	}
	return filepath.Join(b.profiles, b.row+".pprof")
}

// apart measures with subject and generator on CPUs of their own.
func (b *bench) apart(measure func(*result.Row) error) func(*result.Row) error {
	return func(row *result.Row) error {
		cpus, undo, err := subject.Apart()
		if err != nil {
			return err
		}
		if b.cpus = cpus; cpus != nil {
			row.Notes = append(row.Notes, fmt.Sprintf("The measured process ran on %d CPU(s) of its own, its load on the others.", cpus.Count()))
		}
		err = measure(row)
		b.cpus = nil
		return errors.Join(err, undo())
	}
}

// start starts a subject.
func (b *bench) start(c subject.Config) (*subject.Process, error) {
	c.CPUs = b.cpus
	return subject.Start(c)
}

// pause waits, unless the benchmark is interrupted.
func (b *bench) pause(d time.Duration) error {
	select {
	case <-b.ctx.Done():
		return b.ctx.Err()
	case <-time.After(d):
		return nil
	}
}
