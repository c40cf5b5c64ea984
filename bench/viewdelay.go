package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/loadmonitor/loadmonitor/bench/drive"
	"github.com/loadmonitor/loadmonitor/bench/result"
	"github.com/loadmonitor/loadmonitor/bench/subject"
	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

// publishInterval is the product's default.
const publishInterval = 5 * time.Millisecond

const (
	figWithLay = "p99 with the wait for the next frame"
	figWorker  = "bytes for each changed worker"
	figViews   = "views"
)

// viewDelay compares the delay from a report's send to a router's view with the way of the same bytes alone.
func (b *bench) viewDelay(row *result.Row) error {
	const readers = 99
	row.What, row.Unit = "delay p99 from a report's send to a decoding watcher's view", "ms"
	row.Against = "the same bytes through a bare gRPC pipe, less the wait for the next frame"
	l, note, err := b.heldLoad(reportLoad{workers: 1000, ranks: 8, connections: 100, rate: 10},
		func(l reportLoad) (figures, error) { return b.viewed(l, readers, 0) },
		func(f figures) string {
			if f[figInterval] > 2*millis(publishInterval) {
				return fmt.Sprintf("sending alone would take more than half of the monitor's CPU, which sends every %.0f ms instead", f[figInterval])
			}
			return onTime(f)
		})
	if err != nil {
		return err
	}
	row.Load = fmt.Sprintf("%v, beside %d raw readers", l, readers)
	if note != "" {
		row.Notes = append(row.Notes, note)
	}
	row.Notes = append(row.Notes, fmt.Sprintf("The pipe collects reports as the product does, one frame in %v at most. What a report waits there is subtracted, because the target grants the product one interval.", publishInterval))
	names := []shown{{figP50, "ms"}, {figP999, "ms"}, {figWithLay, "ms"}, {figCount, ""}, {figViews, "/s"}, {figFrames, "/s"}, {figPerMsg, "B"}, {figInterval, "ms"}, {figCores, "cores"}, {figLate, "ms"}}
	var last figures
	err = b.turns(row, names,
		func() (figures, error) {
			var err error
			last, err = b.viewed(l, readers, 0)
			return last, err
		},
		func() (figures, error) { return b.piped(l, readers, int(last[figWorker])) })
	limit := millis(publishInterval) + 2*row.Ceiling.Median
	row.Target = result.Target{Text: "≤ publish interval + 2 × the pipe's", Value: row.Product.Median, Limit: limit}
	row.Notes = append(row.Notes, fmt.Sprintf("The target is %.2f ms.", limit))
	return err
}

// heldLate is how late the generator may be, in milliseconds, for a load to count as held.
const heldLate = 5

// onTime says why a load is not held where the generator itself does not keep up, so that what is measured is not its own
// lateness; empty: it does.
func onTime(f figures) string {
	if f[figLate] > heldLate {
		return fmt.Sprintf("the generator is late by %.0f ms", f[figLate])
	}
	return ""
}

// heldLoad halves the rate until nothing speaks against it.
func (b *bench) heldLoad(l reportLoad, try func(l reportLoad) (figures, error), against func(figures) string) (reportLoad, string, error) {
	asked, first := l, ""
	for {
		f, err := try(l)
		if err != nil {
			return l, "", err
		}
		why := against(f)
		if why == "" || l.rate < 0.5 {
			break
		}
		b.say("%s: %v is more than this machine holds: %s", b.row, l, why)
		if first == "" {
			first = why
		}
		l.rate /= 2
	}
	if l == asked {
		return l, "", nil
	}
	return l, fmt.Sprintf("%v was asked for, but %s. This machine, which runs the load as well, holds %g Hz.", asked, first, l.rate), nil
}

// stoppedReaders compares the delay beside readers most of which have stopped to read with that beside as few that have not.
func (b *bench) stoppedReaders(row *result.Row) error {
	const reading, stopped = 5, 15
	l := reportLoad{workers: 200, ranks: 8, connections: 100, rate: 10}
	row.What, row.Unit, row.Against = "delay p99 to a view beside readers that stopped", "ms", "the same without those"
	row.Load = fmt.Sprintf("%v, %d readers, %d of which stopped", l, reading+stopped, stopped)
	names := []shown{{figP50, "ms"}, {figP999, "ms"}, {figCount, ""}, {figViews, "/s"}, {figCores, "cores"}, {figLate, "ms"}}
	err := b.turns(row, names,
		func() (figures, error) { return b.viewed(l, reading, stopped) },
		func() (figures, error) { return b.viewed(l, reading, 0) })
	row.Target = result.Target{Text: "nothing changes: ≤ 1.5 ×", Value: row.Ratio.Median, Limit: 1.5}
	return err
}

// viewed measures the product beside readers, and beside others that stop to read before it is measured.
func (b *bench) viewed(l reportLoad, readers, stopped int) (_ figures, err error) {
	p, err := b.start(subject.Config{Kind: subject.Monitor, Workers: l.workers, Ranks: l.ranks})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	raw, err := drive.Watch(b.ctx, p.Addr, readers)
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	frozen, err := drive.Watch(b.ctx, p.Addr, stopped)
	if err != nil {
		return nil, err
	}
	defer frozen.Close()
	s, err := b.send(p.Addr, l)
	if err != nil {
		return nil, err
	}
	frozen.Stop()
	view, err := drive.Decode(b.ctx, p.Addr, s.fleet)
	if err != nil {
		return nil, errors.Join(err, s.end(p))
	}
	defer view.Close()
	if err := b.pause(b.size.warm); err != nil {
		return nil, err
	}
	view.Take()
	before, err := p.Stats()
	if err == nil {
		err = b.pause(b.size.window)
	}
	d, views := view.Take()
	after, err2 := p.Stats()
	if err := errors.Join(err, err2, s.end(p)); err != nil {
		return nil, err
	}
	if err := errors.Join(raw.Ended()...); err != nil {
		return nil, err
	}
	w := difference(before, after)
	f := delayFigures(d, w, s.fleet)
	f[figViews] = float64(views) / w.Wall.Seconds()
	if w.Versions > 0 && d.Count() > 0 {
		f[figWorker] = f[figPerMsg] * f[figFrames] / float64(readers+1) / (float64(d.Count()) / w.Wall.Seconds())
	}
	return f, nil
}

func delayFigures(d *drive.Delays, w subject.Stats, f *drive.Fleet) figures {
	figs := figures{
		own: millis(d.Quantile(0.99)), figP50: millis(d.Quantile(0.5)), figP999: millis(d.Quantile(0.999)), figCount: float64(d.Count()),
		figFrames:   float64(w.Frames) / w.Wall.Seconds(),
		figInterval: millis(w.EffectiveInterval),
		figCores:    w.CPU.Seconds() / w.Wall.Seconds(),
		figLate:     millis(f.Late().Quantile(0.99)),
	}
	if w.Frames > 0 {
		figs[figPerMsg] = float64(w.Bytes) / float64(w.Frames)
	}
	return figs
}

// piped measures the ceiling. Each report is padded to the bytes that the product sends for a worker.
func (b *bench) piped(l reportLoad, readers, workerBytes int) (_ figures, err error) {
	c := subject.Config{Kind: subject.Pipe, IntervalMs: int(publishInterval.Milliseconds()), PadBytes: max(0, workerBytes-reportBytes(l.ranks))}
	p, err := b.start(c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	raw, err := drive.Watch(b.ctx, p.Addr, readers)
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	s, err := b.send(p.Addr, l)
	if err != nil {
		return nil, err
	}
	r, err := b.readPipe(p.Addr, c.PadBytes, s.fleet.Start())
	if err != nil {
		return nil, errors.Join(err, s.end(p))
	}
	defer r.close()
	if err := b.pause(b.size.warm); err != nil {
		return nil, err
	}
	r.take()
	before, err := p.Stats()
	if err == nil {
		err = b.pause(b.size.window)
	}
	all, way := r.take()
	after, err2 := p.Stats()
	if err := errors.Join(err, err2, s.end(p), r.err); err != nil {
		return nil, err
	}
	f := delayFigures(way, difference(before, after), s.fleet)
	f[figWithLay] = millis(all.Quantile(0.99))
	return f, nil
}

// reportBytes is about what a report takes.
func reportBytes(ranks int) int { return 100 + 100*ranks }

// pipeReader reads what comes out of a pipe.
type pipeReader struct {
	start time.Time
	conn  *grpc.ClientConn
	done  sync.WaitGroup

	mu       sync.Mutex
	all, way drive.Delays // guarded by mu: with and without the time that reports lay in the pipe
	err      error        // written before done
}

func (b *bench) readPipe(addr string, padBytes int, start time.Time) (*pipeReader, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(1<<20), grpc.WithStaticConnWindowSize(1<<20))
	if err != nil {
		return nil, err
	}
	stream, err := conn.NewStream(b.ctx, &loadmonitorpb.SnapshotService_ServiceDesc.Streams[0],
		loadmonitorpb.SnapshotService_Watch_FullMethodName, grpc.ForceCodecV2(drive.RawCodec()), grpc.WaitForReady(true))
	if err == nil {
		err = errors.Join(stream.SendMsg(&loadmonitorpb.WatchRequest{}), stream.CloseSend())
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	r := &pipeReader{start: start, conn: conn}
	r.done.Go(func() {
		raw := drive.Raw{Keep: true}
		for stream.RecvMsg(&raw) == nil {
			since := time.Since(start)
			r.mu.Lock()
			err := subject.ReadPipe(raw.Bytes, padBytes, func(e subject.PipeEntry) {
				took := since - time.Duration(sequenceOf(e.Report))*time.Microsecond
				r.all.Add(took)
				r.way.Add(took - e.Lay)
			})
			r.mu.Unlock()
			if err != nil {
				r.err = err
				return
			}
		}
	})
	return r, nil
}

// take returns the delays since the last call.
func (r *pipeReader) take() (all, way *drive.Delays) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, w := r.all, r.way
	r.all, r.way = drive.Delays{}, drive.Delays{}
	return &a, &w
}

func (r *pipeReader) close() {
	_ = r.conn.Close()
	r.done.Wait()
}

// sequenceOf reads field sequence_id of an encoded report.
func sequenceOf(report []byte) uint64 {
	const sequenceID = 2
	for len(report) > 0 {
		number, kind, n := protowire.ConsumeTag(report)
		if n < 0 {
			return 0
		}
		report = report[n:]
		if number == sequenceID {
			v, _ := protowire.ConsumeVarint(report)
			return v
		}
		n = protowire.ConsumeFieldValue(number, kind, report)
		if n < 0 {
			return 0
		}
		report = report[n:]
	}
	return 0
}
