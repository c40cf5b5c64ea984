package main

import (
	"fmt"

	"github.com/loadmonitor/loadmonitor/bench/result"
	"github.com/loadmonitor/loadmonitor/bench/subject"
)

// grow measures one point of each line for each size.
func (b *bench) grow(c *result.Curve, sizes []int, lines []string, measure func(size int, line string) (figures, error)) error {
	c.Lines = make([]result.Line, len(lines))
	for i, name := range lines {
		c.Lines[i].Name = name
	}
	for _, size := range sizes {
		values := make([][]float64, len(lines))
		for range b.size.points {
			for i, name := range lines {
				f, err := measure(size, name)
				if err != nil {
					return fmt.Errorf("%s at %d: %w", name, size, err)
				}
				values[i] = append(values[i], f[own])
			}
		}
		for i := range lines {
			y := result.NewSeries(values[i])
			c.Lines[i].Points = append(c.Lines[i].Points, result.Point{X: float64(size), Y: y})
			b.say("%s: %s at %d: %.4g", c.ID, lines[i], size, y.Median)
		}
	}
	return nil
}

// sizes leaves out, in quick mode, what takes long to set up.
func (b *bench) sizes(all ...int) []int {
	if b.size.large {
		return all
	}
	return all[:len(all)-1]
}

const (
	lineProduct = "load monitor"
	lineCeiling = "ceiling"
)

func kindOf(line string, ceiling subject.Kind) subject.Kind {
	if line == lineProduct {
		return subject.Monitor
	}
	return ceiling
}

func (b *bench) cpuByWorkers(c *result.Curve) error {
	const total = 2000
	c.Title, c.X, c.Y = "CPU per report by the size of the fleet", "workers", "µs of CPU for each report"
	c.Notes = []string{fmt.Sprintf("%d reports a second in all, 8 ranks each, on 100 connections.", total)}
	return b.grow(c, b.sizes(100, 1000, 10_000), []string{lineProduct, lineCeiling}, func(workers int, line string) (figures, error) {
		l := reportLoad{workers: workers, ranks: 8, connections: 100, rate: total / float64(workers)}
		return b.reports(kindOf(line, subject.Receiver), l)
	})
}

func (b *bench) cpuByRanks(c *result.Curve) error {
	const workers, rate = 200, 5
	c.Title, c.X, c.Y = "CPU per report by ranks", "DP ranks of each worker", "µs of CPU for each report"
	c.Notes = []string{fmt.Sprintf("%d workers × %d Hz on 100 connections.", workers, rate)}
	return b.grow(c, []int{1, 8, 32}, []string{lineProduct, lineCeiling}, func(ranks int, line string) (figures, error) {
		return b.reports(kindOf(line, subject.Receiver), reportLoad{workers: workers, ranks: ranks, connections: 100, rate: rate})
	})
}

func (b *bench) cpuByWatchers(c *result.Curve) error {
	const rate = 10
	c.Title, c.X, c.Y = "CPU per message by watchers", "watchers, each on a connection of its own", "µs of CPU for each message"
	c.Notes = []string{fmt.Sprintf("One worker of 100 changes %d times a second. The ceiling sends to all at once.", rate)}
	var last figures
	return b.grow(c, []int{1, 100, 1000}, []string{lineProduct, lineCeiling}, func(watchers int, line string) (figures, error) {
		if line == lineCeiling {
			return b.messages(like(last, false), watchers, rate)
		}
		var err error
		last, err = b.messages(subject.Config{Kind: subject.Monitor}, watchers, rate)
		return last, err
	})
}

// cpuByBytes shows what the bytes of a message cost, of which no program can spare its sender anything.
func (b *bench) cpuByBytes(c *result.Curve) error {
	const watchers, rate = 100, 10
	c.Title, c.X, c.Y = "CPU per message by its size", "bytes of a message", "µs of CPU for each message"
	c.Notes = []string{fmt.Sprintf("Ready bytes, sent to %d watchers at %d Hz: what gRPC and the kernel take.", watchers, rate)}
	return b.grow(c, []int{1 << 10, 8 << 10, 64 << 10, 256 << 10}, []string{lineCeiling}, func(size int, _ string) (figures, error) {
		return b.messages(subject.Config{Kind: subject.Sender, FrameBytes: size, FirstBytes: size}, watchers, rate)
	})
}
