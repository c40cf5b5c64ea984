package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/loadmonitor/loadmonitor/bench/drive"
	"github.com/loadmonitor/loadmonitor/bench/result"
	"github.com/loadmonitor/loadmonitor/bench/subject"
)

// reportLoad is a fleet that pushes.
type reportLoad struct {
	workers, ranks, connections int
	rate                        float64 // reports a second of each worker; 0: as many as are taken
}

func (l reportLoad) String() string {
	if l.rate == 0 {
		return fmt.Sprintf("%d workers × %d ranks on %d connections, as fast as taken", l.workers, l.ranks, l.connections)
	}
	return fmt.Sprintf("%d workers × %d ranks × %g Hz on %d connections", l.workers, l.ranks, l.rate, l.connections)
}

// sending is a fleet that sends to a subject.
type sending struct {
	fleet *drive.Fleet
	stop  context.CancelFunc
	done  sync.WaitGroup
}

func (b *bench) send(addr string, l reportLoad) (*sending, error) {
	return b.sendFrom(subject.Addresses(l.workers), addr, l)
}

// sendFrom sends from a fleet whose addresses are given.
func (b *bench) sendFrom(urls []string, addr string, l reportLoad) (*sending, error) {
	f, err := drive.Dial(b.ctx, drive.Options{Target: addr, Workers: urls, Ranks: l.ranks, Connections: l.connections, Rate: l.rate})
	if err != nil {
		return nil, err
	}
	s := &sending{fleet: f}
	ctx, stop := context.WithCancel(b.ctx)
	s.stop = stop
	s.done.Go(func() { f.Send(ctx) })
	return s, nil
}

// close stops sending and closes the fleet, whatever has arrived.
func (s *sending) close() {
	s.stop()
	s.done.Wait()
	s.fleet.Close()
}

// end stops sending and closes the fleet. It fails when the subject has not taken what was sent.
func (s *sending) end(p *subject.Process) error {
	defer s.fleet.Close()
	s.stop()
	s.done.Wait()
	if ended := s.fleet.Ended(); len(ended) > 0 {
		return fmt.Errorf("%d streams ended: %w", len(ended), ended[0])
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		st, err := p.Stats()
		if err != nil {
			return err
		}
		sent := s.fleet.Sent()
		switch {
		case st.Refused > 0:
			return fmt.Errorf("%d of %d reports were refused", st.Refused, sent)
		case st.Messages == sent:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%d of %d reports were lost", sent-st.Messages, sent)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// window warms up and returns what the subject used and did while it was measured.
func (b *bench) window(p *subject.Process) (subject.Stats, error) {
	if err := b.pause(b.size.warm); err != nil {
		return subject.Stats{}, err
	}
	if file := b.profileFile(); file != "" {
		if err := p.Profile(file); err != nil {
			return subject.Stats{}, err
		}
		if err := b.pause(10 * time.Second); err != nil {
			return subject.Stats{}, err
		}
		if err := p.EndProfile(); err != nil {
			return subject.Stats{}, err
		}
		b.profile = false
	}
	before, err := p.Stats()
	if err != nil {
		return before, err
	}
	if err := b.pause(b.size.window); err != nil {
		return before, err
	}
	after, err := p.Stats()
	return difference(before, after), err
}

// difference subtracts what only rises; the rest is as of after.
func difference(before, after subject.Stats) subject.Stats {
	d := after
	d.Wall -= before.Wall
	d.CPU -= before.CPU
	d.Messages -= before.Messages
	d.Refused -= before.Refused
	d.Frames -= before.Frames
	d.Bytes -= before.Bytes
	d.Versions -= before.Versions
	d.AllocBytes -= before.AllocBytes
	d.AllocObjects -= before.AllocObjects
	return d
}

// Names of figures.
const (
	figAllocBytes   = "garbage"
	figAllocObjects = "allocations"
	figRate         = "throughput"
	figCores        = "CPU in all"
	figRSS          = "resident memory"
	figLate         = "generator late, p99"
)

var reportFigures = []shown{
	{figAllocBytes, "B/report"}, {figAllocObjects, "/report"}, {figRate, "reports/s"}, {figCores, "cores"}, {figRSS, "MB"}, {figLate, "ms"},
}

// reports measures what a report costs a subject.
func (b *bench) reports(kind subject.Kind, l reportLoad) (_ figures, err error) {
	p, err := b.start(subject.Config{Kind: kind, Workers: l.workers, Ranks: l.ranks})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	s, err := b.send(p.Addr, l)
	if err != nil {
		return nil, err
	}
	w, err := b.window(p)
	if err := errors.Join(err, s.end(p)); err != nil {
		return nil, err
	}
	if w.Messages == 0 {
		return nil, errors.New("no report arrived while it was measured")
	}
	n := float64(w.Messages)
	return figures{
		own:             micros(w.CPU) / n,
		figAllocBytes:   float64(w.AllocBytes) / n,
		figAllocObjects: float64(w.AllocObjects) / n,
		figRate:         n / w.Wall.Seconds(),
		figCores:        w.CPU.Seconds() / w.Wall.Seconds(),
		figRSS:          float64(w.RSS) / (1 << 20),
		figLate:         millis(s.fleet.Late().Quantile(0.99)),
	}, nil
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

func (b *bench) reportPaced(row *result.Row) error {
	row.What = "CPU per accepted report, paced"
	return b.reportRow(row, reportLoad{workers: 1000, ranks: 8, connections: 100, rate: 5})
}

func (b *bench) reportSaturated(row *result.Row) error {
	row.What = "CPU per accepted report, saturated"
	return b.reportRow(row, reportLoad{workers: 64, ranks: 8, connections: 8})
}

func (b *bench) reportRow(row *result.Row, l reportLoad) error {
	row.Load, row.Unit, row.Against = l.String(), "µs", "a gRPC handler that decodes and drops"
	err := b.turns(row, reportFigures,
		func() (figures, error) { return b.reports(subject.Monitor, l) },
		func() (figures, error) { return b.reports(subject.Receiver, l) })
	row.Target = result.Target{Text: "≤ 1.25 ×", Value: row.Ratio.Median, Limit: 1.25}
	return err
}
