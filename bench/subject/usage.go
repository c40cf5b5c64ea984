package subject

import (
	"bytes"
	"fmt"
	"os"
	"runtime/metrics"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/loadmonitor/loadmonitor/bench/drive"
)

// Stats is what a subject has used and done since its start, read at one moment.
type Stats struct {
	Wall time.Duration
	CPU  time.Duration // user and system, of the whole process

	Messages uint64 // received and taken
	Refused  uint64
	Frames   uint64 // sent to watchers
	Bytes    uint64 // of these frames
	Versions uint64 // published

	AllocBytes, AllocObjects uint64
	HeapLive                 uint64 // bytes that the last collection found in use
	Stacks                   uint64 // bytes held for stacks of goroutines
	RSS                      uint64 // bytes
	Goroutines, Threads      uint64

	// EffectiveInterval is the shortest time between two sends to one watcher that the product allows itself.
	EffectiveInterval time.Duration

	// Delays from a report's send to its being taken, since the last time they were asked for.
	DelayCount           uint64
	DelayP50, DelayP99   time.Duration
	DelayP999, DelayMost time.Duration
}

var begun = time.Now()

// usage reads what this process has used.
func usage() (Stats, error) {
	var s Stats
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"},
		{Name: "/sched/goroutines:goroutines"},
	}
	metrics.Read(samples)
	for i, to := range []*uint64{&s.AllocBytes, &s.AllocObjects, &s.HeapLive, &s.Stacks, &s.Goroutines} {
		*to = samples[i].Value.Uint64()
	}
	status, err := readStatus("/proc/self/status")
	if err != nil {
		return s, err
	}
	s.RSS, s.Threads = status.rss, status.threads
	// Last, so that reading the others is not left out of one window and counted in the next.
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return s, fmt.Errorf("read the process's CPU time: %w", err)
	}
	s.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	s.Wall = time.Since(begun)
	return s, nil
}

// UsageOf reads what another process has used, in clock ticks of the kernel (10 ms): good enough for windows of seconds.
func UsageOf(pid int) (Stats, error) {
	status, err := readStatus(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Stats{}, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stats{}, fmt.Errorf("read the process's CPU time: %w", err)
	}
	// The name, in brackets, may hold anything; the fields behind it are counted from 3.
	const utime, stime = 14 - 3, 15 - 3
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) <= stime {
		return Stats{}, fmt.Errorf("read the process's CPU time: %q is not understood", text)
	}
	var ticks time.Duration
	for _, i := range []int{utime, stime} {
		n, err := strconv.ParseInt(string(fields[i]), 10, 64)
		if err != nil {
			return Stats{}, fmt.Errorf("read the process's CPU time: %w", err)
		}
		ticks += time.Duration(n)
	}
	return Stats{CPU: ticks * 10 * time.Millisecond, RSS: status.rss, Threads: status.threads, Wall: time.Since(begun)}, nil
}

type procStatus struct{ rss, threads uint64 }

// readStatus reads a process's status file of Linux.
func readStatus(file string) (procStatus, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return procStatus{}, fmt.Errorf("read the process's memory: %w", err)
	}
	value := func(key string) uint64 {
		_, rest, _ := bytes.Cut(text, []byte("\n"+key+":"))
		fields := bytes.Fields(rest[:min(len(rest), 64)])
		if len(fields) == 0 {
			return 0
		}
		n, _ := strconv.ParseUint(string(fields[0]), 10, 64)
		return n
	}
	return procStatus{rss: value("VmRSS") << 10, threads: value("Threads")}, nil
}

// delays notes how long reports took from their send to where note is called.
type delays struct {
	startUs atomic.Int64 // 0: nobody wants to know

	mu    sync.Mutex
	taken drive.Delays // guarded by mu
}

func (d *delays) measure(startUs int64) { d.startUs.Store(startUs) }

func (d *delays) note(sequence uint64) {
	start := d.startUs.Load()
	if start == 0 {
		return
	}
	took := time.Duration(time.Now().UnixMicro()-start-int64(sequence)) * time.Microsecond
	d.mu.Lock()
	d.taken.Add(took)
	d.mu.Unlock()
}

// count adds the delays and begins anew.
func (d *delays) count(s *Stats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := &d.taken
	s.DelayCount, s.DelayP50, s.DelayP99, s.DelayP999, s.DelayMost = t.Count(), t.Quantile(0.5), t.Quantile(0.99), t.Quantile(0.999), t.Max()
	d.taken = drive.Delays{}
}
