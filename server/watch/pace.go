package watch

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// noPace is the interval below which pacing is left alone: so few watchers send at once.
	noPace = time.Millisecond
	// grid is how far apart slots are.
	grid = time.Millisecond
	// blockedSend is how long a call of SendMsg takes at least when it waited for the watcher rather than worked.
	blockedSend = 250 * time.Microsecond
	// sendShare is how many times the CPU of SendMsg a frame costs in all: grpc's writer, the system call and the
	// watcher's window updates happen after SendMsg has returned and cannot be seen from here. Measured over loopback
	// TCP with one watcher a connection, see BenchmarkSendCost.
	sendShare = 10
	// costWeight is the weight of a new measurement: 1/64.
	costWeight = 64
)

// pace spreads all watchers' sends so that they stay within half of the CPUs (rule W8).
type pace struct {
	zero time.Time // immutable: where the grid of slots begins

	watchers atomic.Int64
	cost     atomic.Int64 // smoothed CPU of one send, nanoseconds
	cpus     atomic.Int64
}

// join counts a watcher in. The number of CPUs is looked at here because it may change while the process runs.
func (p *pace) join() int64 {
	p.cpus.Store(int64(runtime.GOMAXPROCS(0)))
	return p.watchers.Add(1)
}

func (p *pace) leave() { p.watchers.Add(-1) }

// observe takes in how long one call of SendMsg took.
func (p *pace) observe(d time.Duration) {
	if d >= blockedSend {
		return
	}
	sample := int64(d) * sendShare
	for {
		old := p.cost.Load()
		cost := sample
		if old > 0 {
			// A call that was preempted took long without costing more.
			cost = old + (min(sample, 4*old)-old)/costWeight
		}
		if p.cost.CompareAndSwap(old, cost) {
			return
		}
	}
}

// interval returns the shortest time between two sends to one watcher with which all of them together take half of the
// CPUs; 0 when that is no limit in practice.
func (p *pace) interval() time.Duration {
	d := time.Duration(2 * p.cost.Load() * p.watchers.Load() / max(1, p.cpus.Load()))
	if d < noPace {
		return 0
	}
	return d
}

// slot returns when a watcher that has something to do now, and last did something at worked, may do it. Watchers that
// are woken by the same publication spread over one interval by their phases, 0 <= phase < 1; a watcher that is busy
// goes on one interval after its last send, which keeps it where its phase put it. Slots are a millisecond apart: waking
// a few watchers together costs much less than waking each by itself.
func (p *pace) slot(now, worked time.Time, phase float64) time.Time {
	interval := p.interval()
	if interval == 0 {
		return now
	}
	at := worked.Add(interval)
	if !now.Before(at) {
		at = now.Add(time.Duration(phase * float64(interval)))
	}
	return at.Add(grid - 1 - (at.Sub(p.zero)+grid-1)%grid)
}

// phases hands out phases that lie far apart however many are drawn: multiples of the golden ratio, modulo 1.
type phases struct{ drawn atomic.Uint64 }

func (p *phases) next() float64 {
	const golden = 0x9E3779B97F4A7C15 // 2^64 divided by the golden ratio
	return float64((p.drawn.Add(1)*golden)>>11) / (1 << 53)
}
