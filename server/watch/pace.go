package watch

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// noPace is the interval below which pacing is left alone: so few watchers send at once.
	noPace = time.Millisecond
	// blockedSend is how long a call of SendMsg takes at least when it waited for the watcher rather than worked.
	blockedSend = 250 * time.Microsecond
	// sendShare is how many times the CPU of SendMsg a frame costs in all: grpc's writer, the system call and the
	// watcher's window updates happen after SendMsg has returned and cannot be seen from here. Measured over loopback
	// TCP with one watcher a connection, see BenchmarkSendCost.
	sendShare = 10
	// kilobyteCost is the CPU of a kilobyte, which SendMsg does not see at all: the kernel copies it twice. Measured as well;
	// bench's curve cpu-bytes shows it.
	kilobyteCost = 600 * time.Nanosecond
	// costWeight is the weight of a new measurement: 1/64.
	costWeight = 64
)

// pace says how often watchers may be sent to so that all sending stays within half of the CPUs (rule W8).
type pace struct {
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

// observe takes in how long one call of SendMsg took for a frame of so many bytes.
func (p *pace) observe(d time.Duration, size int) {
	if d >= blockedSend {
		return
	}
	sample := int64(d)*sendShare + int64(kilobyteCost)*int64(size)/1000
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
