package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/loadmonitor/loadmonitor/bench/drive"
	"github.com/loadmonitor/loadmonitor/bench/result"
	"github.com/loadmonitor/loadmonitor/bench/subject"
)

// settled is how long a fleet reports before memory is read: several collections of garbage.
func (b *bench) settled() time.Duration { return 2*time.Second + b.size.window }

// memory compares the resident memory of the whole binary with that of a bare receiver of the same streams.
func (b *bench) memory(row *result.Row) error {
	l := b.largest()
	row.What, row.Unit, row.Against = "resident memory", "MB", "a gRPC handler that decodes and drops, with as many streams and connections"
	row.Load = l.String() + ", one watcher; the whole binary"
	defer b.few(b.size.runs / 3)() // each takes a minute
	err := b.turns(row, []shown{{figThreads, ""}, {figCores, "cores"}, {figLate, "ms"}},
		func() (figures, error) { return b.resident(l) },
		func() (figures, error) { return b.residentBare(l) })
	perRank := (row.Product.Median - row.Ceiling.Median) * (1 << 20) / float64(l.workers*l.ranks) / 1024
	row.Target = result.Target{Text: "≤ 1 KiB more per rank", Value: perRank, Limit: 1}
	row.Notes = append(row.Notes, fmt.Sprintf("%.2f KiB more per rank.", perRank))
	return err
}

const figThreads = "threads"

// largest is the largest fleet of the mode.
func (b *bench) largest() reportLoad {
	l := reportLoad{workers: 10_000, ranks: 8, connections: 100, rate: 1}
	if !b.size.large {
		l.workers = 1000
	}
	return l
}

func (b *bench) resident(l reportLoad) (_ figures, err error) {
	w, err := b.startWhole(l.workers, l.ranks)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	readers, err := drive.Watch(b.ctx, w.grpc, 1)
	if err != nil {
		return nil, err
	}
	defer readers.Close()
	s, err := b.sendFrom(w.engines.URLs(), w.grpc, l)
	if err != nil {
		return nil, err
	}
	defer s.close()
	f, err := b.settledUsage(w.usage)
	if err != nil {
		return nil, err
	}
	f[figLate] = millis(s.fleet.Late().Quantile(0.99))
	return f, errors.Join(errors.Join(s.fleet.Ended()...), errors.Join(readers.Ended()...))
}

func (b *bench) residentBare(l reportLoad) (_ figures, err error) {
	p, err := b.start(subject.Config{Kind: subject.Receiver})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	s, err := b.send(p.Addr, l)
	if err != nil {
		return nil, err
	}
	f, err := b.settledUsage(p.Stats)
	return f, errors.Join(err, s.end(p))
}

func (b *bench) settledUsage(read func() (subject.Stats, error)) (figures, error) {
	if err := b.pause(b.settled()); err != nil {
		return nil, err
	}
	before, err := read()
	if err != nil {
		return nil, err
	}
	if err := b.pause(b.settled()); err != nil {
		return nil, err
	}
	after, err := read()
	if err != nil {
		return nil, err
	}
	return figures{
		own: float64(after.RSS) / (1 << 20), figThreads: float64(after.Threads),
		figCores: (after.CPU - before.CPU).Seconds() / (after.Wall - before.Wall).Seconds(),
	}, nil
}

const (
	figLost    = "lost"
	figBegin   = "resident memory after a tenth of the time"
	figSlowest = "slowest of ten new watchers, one after the other"
	figEnd     = "resident memory at the end"
)

// steady lets the largest fleet report to the whole binary for a long time. It runs once.
func (b *bench) steady(row *result.Row) error {
	l := b.largest()
	row.What, row.Unit = fmt.Sprintf("first picture of a new watcher after %v of steady load", b.size.steady), "ms"
	row.Load = l.String() + "; the whole binary"
	defer b.few(1)()
	err := b.turns(row, []shown{{figSlowest, "ms"}, {figLost, "reports"}, {figP50, "ms to the view"}, {"p99", "ms to the view"}, {figP999, "ms to the view"}, {figBegin, "MB"}, {figEnd, "MB"}, {figCores, "cores"}, {figLate, "ms"}},
		func() (figures, error) { return b.steadily(l) }, nil)
	row.Target = result.Target{Text: "< 1 s", Value: row.Product.Median, Limit: 1000}
	return err
}

func (b *bench) steadily(l reportLoad) (_ figures, err error) {
	w, err := b.startWhole(l.workers, l.ranks)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	s, err := b.sendFrom(w.engines.URLs(), w.grpc, l)
	if err != nil {
		return nil, err
	}
	defer s.close()
	view, err := drive.Decode(b.ctx, w.grpc, s.fleet)
	if err != nil {
		return nil, err
	}
	defer view.Close()
	if err := b.pause(b.size.steady / 10); err != nil {
		return nil, err
	}
	view.Take()
	before, err := w.usage()
	if err != nil {
		return nil, err
	}
	if err := b.pause(b.size.steady * 9 / 10); err != nil {
		return nil, err
	}
	after, err := w.usage()
	if err != nil {
		return nil, err
	}
	d, _ := view.Take()
	firsts, err := b.firstPictures(w.grpc, s.fleet)
	if err != nil {
		return nil, err
	}
	s.stop()
	s.done.Wait()
	lost, err := b.unshown(view, s.fleet, l.workers)
	if err != nil {
		return nil, err
	}
	return figures{
		own: firsts.Median, figSlowest: slices.Max(firsts.Values), figLost: float64(lost),
		figP50: millis(d.Quantile(0.5)), "p99": millis(d.Quantile(0.99)), figP999: millis(d.Quantile(0.999)),
		figBegin: float64(before.RSS) / (1 << 20), figEnd: float64(after.RSS) / (1 << 20),
		figCores: (after.CPU - before.CPU).Seconds() / (after.Wall - before.Wall).Seconds(),
		figLate:  millis(s.fleet.Late().Quantile(0.99)),
	}, errors.Join(s.fleet.Ended()...)
}

// firstPictures lets ten watchers come and go, and returns after how many milliseconds each had its first picture.
func (b *bench) firstPictures(addr string, f *drive.Fleet) (result.Series, error) {
	var took []float64
	for range 10 {
		v, err := drive.Decode(b.ctx, addr, f)
		if err != nil {
			return result.Series{}, err
		}
		took = append(took, millis(v.First()))
		v.Close()
		if err := b.pause(time.Second); err != nil {
			return result.Series{}, err
		}
	}
	return result.NewSeries(took), nil
}

// unshown counts the workers whose newest report the view does not show two seconds after the last one was sent.
func (b *bench) unshown(view *drive.View, f *drive.Fleet, workers int) (int, error) {
	if err := b.pause(2 * time.Second); err != nil {
		return 0, err
	}
	last := make(map[string]uint64, workers)
	for i := range workers {
		last[f.Source(i)] = f.Last(i)
	}
	missing := workers
	for w := range view.Newest().All() {
		if sequence, ours := last[w.SourceInstance]; ours && sequence == w.Sequence {
			missing--
		}
	}
	return missing, nil
}
