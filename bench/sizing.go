package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/loadmonitor/loadmonitor/bench/drive"
	"github.com/loadmonitor/loadmonitor/bench/result"
)

// loads are what the table of sizes is measured with; quick mode stops at the first that takes long to set up.
var loads = []struct {
	reportLoad
	watchers int
	large    bool
}{
	{reportLoad{workers: 100, ranks: 8, connections: 100, rate: 1}, 10, false},
	{reportLoad{workers: 100, ranks: 8, connections: 100, rate: 1}, 1000, false},
	{reportLoad{workers: 1000, ranks: 8, connections: 100, rate: 1}, 10, false},
	{reportLoad{workers: 1000, ranks: 8, connections: 100, rate: 1}, 100, true},
	{reportLoad{workers: 1000, ranks: 8, connections: 100, rate: 10}, 10, true},
	{reportLoad{workers: 200, ranks: 8, connections: 100, rate: 5}, 1000, true},
	{reportLoad{workers: 1000, ranks: 32, connections: 100, rate: 1}, 10, true},
	{reportLoad{workers: 10_000, ranks: 8, connections: 100, rate: 1}, 10, true},
}

// tooLate is how late the generator may be for a size to count as held.
const tooLate = 50 * time.Millisecond

// sizing measures what the whole binary needs for fleets of several sizes.
func (b *bench) sizing() ([]result.Size, error) {
	var sizes []result.Size
	for _, l := range loads {
		if l.large && !b.size.large {
			continue
		}
		s, err := b.sized(l.reportLoad, l.watchers)
		if err != nil {
			return nil, fmt.Errorf("sizing: %v, %d watchers: %w", l.reportLoad, l.watchers, err)
		}
		b.say("sizing %v, %d watchers: %.2f cores, %.0f MB, %.1f MB/s out", l.reportLoad, l.watchers, s.Cores, s.MemoryMB, s.OutMBps)
		sizes = append(sizes, s)
	}
	return sizes, nil
}

func (b *bench) sized(l reportLoad, watchers int) (_ result.Size, err error) {
	w, err := b.startWhole(l.workers, l.ranks)
	if err != nil {
		return result.Size{}, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	readers, err := drive.Watch(b.ctx, w.grpc, watchers)
	if err != nil {
		return result.Size{}, err
	}
	defer readers.Close()
	s, err := b.sendFrom(w.engines.URLs(), w.grpc, l)
	if err != nil {
		return result.Size{}, err
	}
	defer s.close()
	view, err := drive.Decode(b.ctx, w.grpc, s.fleet)
	if err != nil {
		return result.Size{}, err
	}
	defer view.Close()
	if err := b.pause(b.settled()); err != nil {
		return result.Size{}, err
	}
	view.Take()
	bytes, before := readers.Bytes.Load(), time.Now()
	used, err := w.usage()
	if err != nil {
		return result.Size{}, err
	}
	if err := b.pause(2 * b.settled()); err != nil {
		return result.Size{}, err
	}
	after, err := w.usage()
	if err != nil {
		return result.Size{}, err
	}
	seconds := time.Since(before).Seconds()
	d, _ := view.Take()
	size := result.Size{
		Workers: l.workers, Ranks: l.ranks, Rate: l.rate, Watchers: watchers,
		Cores:    (after.CPU - used.CPU).Seconds() / seconds,
		MemoryMB: float64(after.RSS) / (1 << 20),
		OutMBps:  float64(readers.Bytes.Load()-bytes) / seconds / 1e6,
		DelayP50: millis(d.Quantile(0.5)), DelayP99: millis(d.Quantile(0.99)),
	}
	if late := s.fleet.Late().Quantile(0.99); late > tooLate {
		size.Note = fmt.Sprintf("the generator was late by %.0f ms", millis(late))
	}
	return size, errors.Join(errors.Join(s.fleet.Ended()...), errors.Join(readers.Ended()...))
}
