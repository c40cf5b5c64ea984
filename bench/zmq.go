package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/loadmonitor/loadmonitor/bench/result"
	"github.com/loadmonitor/loadmonitor/bench/subject"
)

const (
	figAlone  = "bridge without aggregator"
	figHanded = "handed on, the rest being older than the newest"
)

// socketLoad is a number of publishers, eight for each worker.
type socketLoad struct {
	sockets int
	rate    float64
}

func (l socketLoad) String() string { return fmt.Sprintf("%d sockets × %g Hz", l.sockets, l.rate) }

const (
	ranksPerWorker     = 8
	filesPerPublisher  = 3
	filesPerSubscriber = 2
	spareFiles         = 2000
)

// heldSockets is how many sockets the open-file limit leaves to one subscriber.
func heldSockets(asked int) (held int, note string, err error) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, "", err
	}
	most := (int(min(r.Max, 1<<22)) - spareFiles) / filesPerSubscriber / ranksPerWorker * ranksPerWorker
	if asked <= most {
		return asked, "", nil
	}
	return most, fmt.Sprintf("%d sockets were asked for; the open-file limit of %d holds %d.", asked, r.Max, most), nil
}

// publish starts publishers, in as many processes as their files need, and returns where they are.
func (b *bench) publish(l socketLoad, silentAfter time.Duration) (endpoints []string, stop func() error, err error) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return nil, nil, err
	}
	most := max(ranksPerWorker, (int(min(r.Max, 1<<22))-spareFiles)/filesPerPublisher/ranksPerWorker*ranksPerWorker)
	var processes []*subject.Process
	stop = func() error {
		var errs []error
		for _, p := range processes {
			errs = append(errs, p.Stop())
		}
		return errors.Join(errs...)
	}
	for left := l.sockets; left > 0; left -= most {
		p, err := b.start(subject.Config{
			Kind: subject.Publishers, Workers: min(left, most) / ranksPerWorker, Ranks: ranksPerWorker, Rate: l.rate,
			SilentAfterMs: int(silentAfter.Milliseconds()),
		})
		if err != nil {
			return nil, nil, errors.Join(err, stop())
		}
		processes = append(processes, p)
		endpoints = append(endpoints, strings.Fields(p.Addr)...)
	}
	return endpoints, stop, nil
}

func (b *bench) zmq1024(row *result.Row) error { return b.zmqRow(row, socketLoad{1024, 10}) }
func (b *bench) zmq8192(row *result.Row) error { return b.zmqRow(row, socketLoad{8192, 1}) }

func (b *bench) zmqRow(row *result.Row, l socketLoad) error {
	row.What, row.Unit, row.Against = "CPU per message bridged from ZMQ", "µs", "a loop in C that receives from as many sockets, and the decoder"
	var note string
	var err error
	if l.sockets, note, err = heldSockets(l.sockets); err != nil {
		return err
	}
	if note != "" {
		row.Notes = append(row.Notes, note)
	}
	row.Load = l.String()
	endpoints, stop, err := b.publish(l, 0)
	if err != nil {
		return err
	}
	err = b.turns(row, []shown{{figAlone, "µs"}, {figRate, "messages/s"}, {figHanded, "share"}, {figAllocBytes, "B/message"}, {figCores, "cores"}, {figRSS, "MB"}, {figThreads, ""}},
		func() (figures, error) {
			f, err := b.bridged(l, endpoints, false)
			if err != nil {
				return nil, err
			}
			if !b.size.large {
				return f, nil
			}
			alone, err := b.bridged(l, endpoints, true)
			f[figAlone] = alone[own]
			return f, err
		},
		func() (figures, error) { return b.looped(l, endpoints) })
	row.Target = result.Target{Text: "≤ 1.15 ×", Value: row.Ratio.Median, Limit: 1.15}
	return errors.Join(err, stop())
}

// connecting is how long all sockets may take to be connected.
const connecting = 2 * time.Minute

func (b *bench) bridged(l socketLoad, endpoints []string, alone bool) (_ figures, err error) {
	p, err := b.start(subject.Config{Kind: subject.Bridge, Endpoints: endpoints, Ranks: ranksPerWorker, Alone: alone})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	if err := b.connected(p, l); err != nil {
		return nil, err
	}
	w, err := b.window(p)
	if err != nil {
		return nil, err
	}
	if w.Messages == 0 {
		return nil, errors.New("no message arrived while it was measured")
	}
	n := float64(w.Messages)
	return figures{
		own: micros(w.CPU) / n, figRate: n / w.Wall.Seconds(), figAllocBytes: float64(w.AllocBytes) / n, figCores: w.CPU.Seconds() / w.Wall.Seconds(),
		figRSS: float64(w.RSS) / (1 << 20), figThreads: float64(w.Threads), figHanded: float64(w.Frames) / n,
	}, nil
}

// connected waits until messages come at nearly the rate at which they are sent.
func (b *bench) connected(p *subject.Process, l socketLoad) error {
	want := 0.95 * float64(l.sockets) * l.rate
	begin := time.Now()
	before, err := p.Stats()
	for err == nil {
		if err := b.pause(time.Second); err != nil {
			return err
		}
		after, err := p.Stats()
		if err != nil {
			return err
		}
		d := difference(before, after)
		rate := float64(d.Messages) / d.Wall.Seconds()
		if rate >= want {
			return nil
		}
		if time.Since(begin) > connecting {
			return fmt.Errorf("after %v %.0f messages arrive in a second: want %.0f", connecting, rate, want)
		}
		before = after
	}
	return err
}

// looped measures the ceiling, which counts by itself.
func (b *bench) looped(l socketLoad, endpoints []string) (_ figures, err error) {
	// Until every socket is connected: its handshakes are no messages.
	warm := 3*time.Second + time.Duration(l.sockets)*time.Millisecond + b.size.warm
	p, err := b.start(subject.Config{
		Kind: subject.ZMQLoop, Endpoints: endpoints, WarmMs: int(warm.Milliseconds()), WindowMs: int(b.size.window.Milliseconds()),
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	for {
		if err := b.pause(200 * time.Millisecond); err != nil {
			return nil, err
		}
		s, err := p.Stats()
		if err != nil {
			return nil, err
		}
		if n := float64(s.Messages); n > 0 {
			return figures{
				own: micros(s.CPU) / n, figRate: n / s.Wall.Seconds(), figCores: s.CPU.Seconds() / s.Wall.Seconds(), figRSS: float64(s.RSS) / (1 << 20),
				figThreads: float64(s.Threads),
			}, nil
		}
	}
}

// zmqSilent measures what sockets cost whose publishers have fallen silent.
func (b *bench) zmqSilent(row *result.Row) error {
	l := socketLoad{8192, 1}
	row.What, row.Unit = "CPU when publishers are silent", "% of a core"
	var note string
	var err error
	if l.sockets, note, err = heldSockets(l.sockets); err != nil {
		return err
	}
	if note != "" {
		row.Notes = append(row.Notes, note)
	}
	row.Load = fmt.Sprintf("%d sockets, ten seconds after the last message", l.sockets)
	defer b.few(b.size.runs / 3)() // each takes a minute
	err = b.turns(row, []shown{{figThreads, ""}, {figRSS, "MB"}}, func() (figures, error) { return b.silent(l) }, nil)
	most := 0.0
	for _, f := range row.Figures {
		if f.Name == figThreads {
			most = f.Product.Median
		}
	}
	row.Target = result.Target{Text: "≤ 2 % of a core", Value: row.Product.Median, Limit: 2}
	row.Notes = append(row.Notes, fmt.Sprintf("%.0f threads; the target is at most 16.", most))
	return err
}

func (b *bench) silent(l socketLoad) (_ figures, err error) {
	const loud, quiet = 40 * time.Second, 10 * time.Second
	begin := time.Now()
	endpoints, stop, err := b.publish(l, loud)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	p, err := b.start(subject.Config{Kind: subject.Bridge, Endpoints: endpoints, Ranks: ranksPerWorker})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	if err := b.connected(p, l); err != nil {
		return nil, err
	}
	if err := b.pause(time.Until(begin.Add(loud + quiet))); err != nil {
		return nil, err
	}
	w, err := b.window(p)
	if err != nil {
		return nil, err
	}
	if w.Messages > 0 {
		return nil, fmt.Errorf("%d messages arrived after the publishers had fallen silent", w.Messages)
	}
	return figures{own: 100 * w.CPU.Seconds() / w.Wall.Seconds(), figThreads: float64(w.Threads), figRSS: float64(w.RSS) / (1 << 20)}, nil
}
