package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/loadmonitor/loadmonitor/bench/drive"
	"github.com/loadmonitor/loadmonitor/client"
)

// Bounds on what a bench waits for.
const (
	benchSetUp  = 2 * time.Minute  // until every engine was told to report
	benchSettle = time.Second      // for more to arrive after the last that did
	benchLeave  = 30 * time.Second // until every worker is removed
)

// runBench registers engines, puts the load on and takes everything back.
func runBench(ctx context.Context, o *benchOptions, progress io.Writer) (r *benchResult, err error) {
	conn, err := grpc.NewClient(o.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("grpc is %q: %w", o.grpc, err)
	}
	defer conn.Close()
	engines, err := drive.ListenEngines(ctx, o.engineHost, o.workers, o.ranks)
	if err != nil {
		return nil, err
	}
	defer engines.Close()

	life := rand.Text()[:6]
	id := func(i int) string { return fmt.Sprintf("bench-%s-%05d", life, i) }
	setUp, cancel := context.WithTimeout(ctx, benchSetUp)
	defer cancel()
	fmt.Fprintf(progress, "registering %d engines at %s\n", o.workers, o.grpc)
	if err := drive.Register(setUp, conn, engines.URLs(), o.ranks, id); err != nil {
		return nil, err
	}
	defer func() {
		leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), benchLeave)
		defer cancel()
		err = errors.Join(err, drive.Deregister(leave, conn, o.workers, id))
	}()
	if err := engines.Wait(setUp); err != nil {
		return nil, fmt.Errorf("the monitor cannot reach the engines, is --engine-host right? %w", err)
	}
	b := &benchRun{o: o, progress: progress}
	return b.run(setUp, ctx, engines.URLs())
}

// benchRun is the load itself.
type benchRun struct {
	o        *benchOptions
	progress io.Writer

	fleet   *drive.Fleet
	readers *drive.Readers
	views   []*drive.View
	delays  drive.Delays
}

func (b *benchRun) run(setUp, ctx context.Context, urls []string) (*benchResult, error) {
	o := b.o
	var err error
	if b.readers, err = drive.Watch(setUp, o.grpc, o.watchers); err != nil {
		return nil, err
	}
	defer b.readers.Close()
	b.fleet, err = drive.Dial(setUp, drive.Options{
		Target: o.grpc, Workers: urls, Ranks: o.ranks, Connections: o.connections, Rate: o.rate,
	})
	if err != nil {
		return nil, err
	}
	defer b.fleet.Close()
	for range o.decoding {
		v, err := drive.Decode(setUp, o.grpc, b.fleet)
		if err != nil {
			return nil, err
		}
		b.views = append(b.views, v)
		defer v.Close()
	}

	before, err := fetchCounters(ctx, o.http)
	if err != nil {
		return nil, err
	}
	frames, bytes := b.readers.Frames.Load(), b.readers.Bytes.Load()
	begin := time.Now()
	b.load(ctx)
	took := time.Since(begin).Seconds()
	frames, bytes = b.readers.Frames.Load()-frames, b.readers.Bytes.Load()-bytes
	after, err := b.settle(ctx, before)
	if err != nil {
		return nil, err
	}
	return b.result(took, frames, bytes, before, after), nil
}

// load sends for as long as was asked for, or until ctx ends, and writes a line of progress each second.
func (b *benchRun) load(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, b.o.duration)
	defer cancel()
	var sending sync.WaitGroup
	sending.Go(func() { b.fleet.Send(ctx) })
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	begin, sent := time.Now(), uint64(0)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			now := b.fleet.Sent()
			d := b.take()
			fmt.Fprintf(b.progress, "%4.0fs  %d reports/s; delay p50 %s p99 %s of %d; %d streams, %d watches ended\n",
				time.Since(begin).Seconds(), now-sent, ms(d.Quantile(0.5)), ms(d.Quantile(0.99)), d.Count(), len(b.fleet.Ended()), len(b.readers.Ended()))
			sent = now
		}
	}
	sending.Wait()
}

// take collects the delays of all decoding watchers since the last call.
func (b *benchRun) take() *drive.Delays {
	d := new(drive.Delays)
	for _, v := range b.views {
		own, _ := v.Take()
		d.Merge(own)
	}
	b.delays.Merge(d)
	return d
}

// settle waits until all that was sent has arrived, or nothing more does, and returns the counters then.
func (b *benchRun) settle(ctx context.Context, before counters) (counters, error) {
	type arrived struct {
		taken   uint64
		unshown int
	}
	var last arrived
	since := time.Now()
	for {
		after, err := fetchCounters(ctx, b.o.http)
		if err != nil {
			return after, err
		}
		now := arrived{after.accepted - before.accepted + after.refused - before.refused, b.unshown()}
		if now != last {
			last, since = now, time.Now()
		}
		if (b.o.http == "" || now.taken >= b.fleet.Sent()) && now.unshown == 0 || time.Since(since) > benchSettle {
			b.take()
			return after, nil
		}
		select {
		case <-ctx.Done():
			return after, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// unshown counts the workers whose newest report some decoding watcher does not show.
func (b *benchRun) unshown() int {
	last := make(map[string]uint64, b.o.workers)
	for i := range b.o.workers {
		last[b.fleet.Source(i)] = b.fleet.Last(i)
	}
	most := 0
	for _, v := range b.views {
		missing := len(last)
		for w := range v.Newest().All() {
			if newest(w, last) {
				missing--
			}
		}
		most = max(most, missing)
	}
	return most
}

func newest(w client.Worker, last map[string]uint64) bool {
	sequence, ours := last[w.SourceInstance]
	return ours && w.Sequence == sequence
}

func (b *benchRun) result(took float64, frames, bytes uint64, before, after counters) *benchResult {
	o := b.o
	r := &benchResult{
		Workers: o.workers, Ranks: o.ranks, Rate: o.rate, Connections: o.connections, Watchers: o.watchers, Decoding: o.decoding,
		Seconds: took, Sent: b.fleet.Sent(), SentPerSecond: float64(b.fleet.Sent()) / took,
		LateP99: millis(b.fleet.Late().Quantile(0.99)), Skipped: b.fleet.Skipped(),
	}
	if o.http != "" {
		accepted, refused := after.accepted-before.accepted, after.refused-before.refused
		cpu, memory := (after.cpu-before.cpu)/took, after.memory
		r.Accepted, r.Refused, r.CPU, r.Memory = &accepted, &refused, &cpu, &memory
		r.Lost.Refused = refused
		if taken := accepted + refused; taken < r.Sent {
			r.Lost.Reports = r.Sent - taken
		}
	}
	streams, watches := b.fleet.Ended(), b.readers.Ended()
	r.Lost.Streams, r.Lost.Watches, r.Lost.Unshown = len(streams), len(watches), b.unshown()
	if all := append(streams, watches...); len(all) > 0 {
		r.Lost.FirstWhy = all[0].Error()
	}
	d := &b.delays
	r.Delay.Count = d.Count()
	r.Delay.P50, r.Delay.P99, r.Delay.P999, r.Delay.Max = millis(d.Quantile(0.5)), millis(d.Quantile(0.99)), millis(d.Quantile(0.999)), millis(d.Max())
	for _, v := range b.views {
		r.FirstPicture = max(r.FirstPicture, millis(v.First()))
	}
	if o.watchers > 0 {
		r.BytesPerWatcher = float64(bytes) / took / float64(o.watchers)
		r.FramesPerWatcher = float64(frames) / took / float64(o.watchers)
	}
	return r
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
