package main

import (
	"errors"
	"fmt"

	"github.com/loadmonitor/loadmonitor/bench/drive"
	"github.com/loadmonitor/loadmonitor/bench/result"
	"github.com/loadmonitor/loadmonitor/bench/subject"
)

const (
	figFrame    = "frame"
	figInterval = "interval the product allows itself"
	figFrames   = "messages"
)

var watchFigures = []shown{
	{figAllocBytes, "B/message"}, {figAllocObjects, "/message"}, {figFrames, "/s"}, {figFrame, "B"}, {figInterval, "ms"}, {figCores, "cores"}, {figRSS, "MB"},
}

// messages measures what a message to a watcher costs a subject, when one worker of a hundred changes rate times a second.
func (b *bench) messages(c subject.Config, watchers int, rate float64) (_ figures, err error) {
	c.Workers, c.Ranks = 100, 8
	p, err := b.start(c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	readers, err := drive.Watch(b.ctx, p.Addr, watchers)
	if err != nil {
		return nil, err
	}
	defer readers.Close()
	s, err := b.send(p.Addr, reportLoad{workers: 1, ranks: 8, connections: 1, rate: rate})
	if err != nil {
		return nil, err
	}
	w, err := b.window(p)
	if err := errors.Join(err, s.end(p)); err != nil {
		return nil, err
	}
	if ended := readers.Ended(); len(ended) > 0 {
		return nil, fmt.Errorf("%d watchers ended: %w", len(ended), ended[0])
	}
	if w.Frames == 0 {
		return nil, errors.New("no message was sent while it was measured")
	}
	n := float64(w.Frames)
	return figures{
		own:             micros(w.CPU) / n,
		figAllocBytes:   float64(w.AllocBytes) / n,
		figAllocObjects: float64(w.AllocObjects) / n,
		figFrames:       n / w.Wall.Seconds(),
		figFrame:        float64(w.Bytes) / n,
		figInterval:     millis(w.EffectiveInterval),
		figCores:        w.CPU.Seconds() / w.Wall.Seconds(),
		figRSS:          float64(w.RSS) / (1 << 20),
	}, nil
}

func (b *bench) watch(row *result.Row) error {
	row.What = "CPU per message to a watcher"
	row.Against = "a gRPC handler that sends ready bytes, to all at once"
	return b.watchRow(row, false)
}

func (b *bench) watchSpread(row *result.Row) error {
	row.What = "CPU per message to a watcher, sends spread alike"
	row.Against = "a gRPC handler that sends ready bytes, spread in time as the product spreads them"
	row.Notes = append(row.Notes, "The product spreads its sends over an interval, so that watchers do not slow ingest (rule W8). Bursts cost less for each message, on both sides.")
	return b.watchRow(row, true)
}

func (b *bench) watchRow(row *result.Row, spread bool) error {
	const watchers, rate = 1000, 10
	row.Load, row.Unit = fmt.Sprintf("%d watchers on connections of their own, one change at %d Hz", watchers, rate), "µs"
	var last figures
	err := b.turns(row, watchFigures,
		func() (figures, error) {
			var err error
			last, err = b.messages(subject.Config{Kind: subject.Monitor}, watchers, rate)
			return last, err
		},
		func() (figures, error) { return b.messages(like(last, spread), watchers, rate) })
	row.Target = result.Target{Text: "≤ 1.25 ×", Value: row.Ratio.Median, Limit: 1.25}
	return err
}

// like is a sender that sends what the product has just sent.
func like(product figures, spread bool) subject.Config {
	size := int(product[figFrame])
	c := subject.Config{Kind: subject.Sender, FrameBytes: size, FirstBytes: size}
	if spread {
		c.SpreadMs = int(product[figInterval] + 0.5)
	}
	return c
}

const (
	figP50    = "p50"
	figP999   = "p99.9"
	figCount  = "reports measured"
	figPerMsg = "frame, mean"
)

// ingestDelay compares the delay from a report's send to its being taken beside many watchers with the delay without.
func (b *bench) ingestDelay(row *result.Row) error {
	const watchers = 1000
	row.What, row.Unit, row.Against = "ingest delay p99 beside watchers", "ms", "the same without watchers"
	l, note, err := b.heldLoad(reportLoad{workers: 200, ranks: 8, connections: 100, rate: 5},
		func(l reportLoad) (figures, error) { return b.ingest(l, watchers) }, onTime)
	if err != nil {
		return err
	}
	if note != "" {
		row.Notes = append(row.Notes, note)
	}
	row.Load = fmt.Sprintf("%v, %d watchers", l, watchers)
	names := []shown{{figP50, "ms"}, {figP999, "ms"}, {figCount, ""}, {figFrames, "/s"}, {figPerMsg, "B"}, {figInterval, "ms"}, {figCores, "cores"}, {figLate, "ms"}}
	err = b.turns(row, names,
		func() (figures, error) { return b.ingest(l, watchers) },
		func() (figures, error) { return b.ingest(l, 0) })
	row.Target = result.Target{Text: "≤ 3 ×", Value: row.Ratio.Median, Limit: 3}
	return err
}

func (b *bench) ingest(l reportLoad, watchers int) (_ figures, err error) {
	p, err := b.start(subject.Config{Kind: subject.Monitor, Workers: l.workers, Ranks: l.ranks})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	readers, err := drive.Watch(b.ctx, p.Addr, watchers)
	if err != nil {
		return nil, err
	}
	defer readers.Close()
	s, err := b.send(p.Addr, l)
	if err != nil {
		return nil, err
	}
	if err := p.Measure(s.fleet.Start()); err != nil {
		return nil, err
	}
	w, err := b.window(p)
	if err := errors.Join(err, s.end(p)); err != nil {
		return nil, err
	}
	if ended := readers.Ended(); len(ended) > 0 {
		return nil, fmt.Errorf("%d watchers ended: %w", len(ended), ended[0])
	}
	f := figures{
		own: millis(w.DelayP99), figP50: millis(w.DelayP50), figP999: millis(w.DelayP999), figCount: float64(w.DelayCount),
		figFrames:   float64(w.Frames) / w.Wall.Seconds(),
		figInterval: millis(w.EffectiveInterval),
		figCores:    w.CPU.Seconds() / w.Wall.Seconds(),
		figLate:     millis(s.fleet.Late().Quantile(0.99)),
	}
	if w.Frames > 0 {
		f[figPerMsg] = float64(w.Bytes) / float64(w.Frames)
	}
	return f, nil
}
