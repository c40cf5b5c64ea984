package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/loadmonitor/loadmonitor/bench/result"
)

// Some steps cannot be measured from outside, because they are a part of one call. Their benchmarks stand beside their code;
// here they are built once and run in turns.

// goBenchmarks builds the test binary of a package of this module.
func (b *bench) goBenchmarks(pkg string) (file string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return "", nil, err
	}
	file = filepath.Join(dir, "package.test")
	cmd := exec.CommandContext(b.ctx, "go", "test", "-c", "-o", file, "./"+pkg)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", nil, errors.Join(fmt.Errorf("build the benchmarks of %s: %w: %s", pkg, err, out), os.RemoveAll(dir))
	}
	return file, func() { _ = os.RemoveAll(dir) }, nil
}

// goBenchmark runs one benchmark, named with its sub-benchmarks, and returns its figures by their units.
func (b *bench) goBenchmark(file, name string) (map[string]float64, error) {
	// A fixed number of times, enough for several collections of garbage.
	times := fmt.Sprintf("%dx", 20_000*int(b.size.window/time.Second))
	pattern := "^" + strings.ReplaceAll(name, "/", "$/^") + "$"
	args := []string{"-test.run=^$", "-test.bench=" + pattern, "-test.benchmem", "-test.benchtime=" + times}
	if f := b.profileFile(); f != "" {
		args = append(args, "-test.cpuprofile="+f)
	}
	out, err := exec.CommandContext(b.ctx, file, args...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("benchmark %s: %w: %s", name, err, out)
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		values := map[string]float64{}
		for i := 2; i+1 < len(fields); i += 2 {
			if v, err := strconv.ParseFloat(fields[i], 64); err == nil {
				values[fields[i+1]] = v
			}
		}
		return values, nil
	}
	return nil, fmt.Errorf("benchmark %s: there is none of that name", name)
}

const figSecond = "of which frames for 64 watchers"

// publishOne measures one change on its way to 64 watchers' hands.
func (b *bench) publishOne(row *result.Row) error {
	row.What, row.Unit = "publish and encode one change, before the network", "µs"
	row.Load = "1,024 workers × 8 ranks, 64 watchers"
	row.Notes = []string{"The sum of two benchmarks: aggregator BenchmarkPublish (one change) and server/watch BenchmarkPublishOneChange, whose own table update is counted as well."}
	publish, remove, err := b.goBenchmarks("aggregator")
	if err != nil {
		return err
	}
	defer remove()
	frames, remove2, err := b.goBenchmarks("server/watch")
	if err != nil {
		return err
	}
	defer remove2()
	err = b.turns(row, []shown{{figSecond, "µs"}, {figAllocBytes, "B"}}, func() (figures, error) {
		p, err := b.goBenchmark(publish, "BenchmarkPublish/workers=1024/k=1")
		if err != nil {
			return nil, err
		}
		f, err := b.goBenchmark(frames, "BenchmarkPublishOneChange/workers=1024")
		if err != nil {
			return nil, err
		}
		return figures{own: (p["ns/op"] + f["ns/op"]) / 1e3, figSecond: f["ns/op"] / 1e3, figAllocBytes: p["B/op"] + f["B/op"]}, nil
	}, nil)
	row.Target = result.Target{Text: "p50 ≤ 15 µs", Value: row.Product.Median, Limit: 15}
	return err
}

// publishRatio measures what a larger fleet adds to publishing k changes.
func (b *bench) publishRatio(k int, limit float64) func(*result.Row) error {
	return func(row *result.Row) error {
		row.What = fmt.Sprintf("publish %d of 10,000 workers", k)
		row.Load, row.Unit, row.Against = "aggregator BenchmarkPublish", "µs", fmt.Sprintf("the product, %d of 100 workers", k)
		file, remove, err := b.goBenchmarks("aggregator")
		if err != nil {
			return err
		}
		defer remove()
		measure := func(workers int) func() (figures, error) {
			return func() (figures, error) {
				p, err := b.goBenchmark(file, fmt.Sprintf("BenchmarkPublish/workers=%d/k=%d", workers, k))
				if err != nil {
					return nil, err
				}
				return figures{own: p["ns/op"] / 1e3, figAllocBytes: p["B/op"]}, nil
			}
		}
		err = b.turns(row, []shown{{figAllocBytes, "B"}}, measure(10_000), measure(100))
		row.Target = result.Target{Text: fmt.Sprintf("≤ %g ×", limit), Value: row.Ratio.Median, Limit: limit}
		return err
	}
}
