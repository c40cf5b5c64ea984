package zmq

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loadmonitor/loadmonitor/load"
)

// state is what a follower tells of itself.
type state struct {
	Ranks    int            // that have data
	Newest   int64          // running requests of the newest message of any rank
	Received int            // messages handed on
	Noted    map[string]int // ranks by the first words of their note
	Sockets  int
	Starved  int
	Threads  int
	Files    int
	RSS      int64 // bytes
	CPU      time.Duration
	Wall     time.Duration
	Accepts  bool // a listener of the same process still accepts
	Redials  int
}

// playFollower is a bridge in a process of its own. Its arguments are an open-file limit (0: as it is) and how often each
// endpoint is dialled. It reads endpoints from the first line of its input; for every line after that, the number of
// ranks that are targets from then on (empty: no change), it tells its state.
func playFollower() error {
	args := strings.Fields(os.Getenv("ZMQ_TEST_ARGS"))
	files, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	times, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	if files > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(files), Max: uint64(files)}); err != nil {
			return err
		}
	}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	var endpoints []string
	for range times {
		endpoints = append(endpoints, strings.Fields(line)...)
	}
	targets := targetsOf(endpoints)
	s := &followSink{ranks: make(map[targetKey]bool), notes: make(map[targetKey]string)}
	b, err := New(Options{Sink: s})
	if err != nil {
		return err
	}
	b.SetTargets(targets)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	began, cpu := time.Now(), cpuTime()
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			break
		}
		if n, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			b.SetTargets(targets[:n])
		}
		st := s.state()
		st.Sockets, st.Starved = int(b.counts.sockets.Load()), int(b.counts.starved.Load())
		st.Redials = int(b.counts.redials.Load())
		st.CPU, st.Wall = cpuTime()-cpu, time.Since(began)
		began, cpu = time.Now(), cpuTime()
		st.Threads, st.RSS = process("Threads:"), int64(process("VmRSS:"))<<10
		if d, err := os.ReadDir("/proc/self/fd"); err == nil {
			st.Files = len(d)
		}
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			if a, err := l.Accept(); err == nil {
				st.Accepts = true
				a.Close()
			}
			c.Close()
		}
		if err := json.NewEncoder(os.Stdout).Encode(st); err != nil {
			return err
		}
	}
	cancel()
	return <-done
}

// process reads a number from the status of this process.
func process(field string) int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return -1
	}
	_, rest, _ := strings.Cut(string(status), field)
	n := 0
	_, _ = fmt.Sscan(rest, &n)
	return n
}

type followSink struct {
	mu       sync.Mutex
	ranks    map[targetKey]bool
	notes    map[targetKey]string
	newest   int64
	received int
}

func (s *followSink) ApplyRank(_ *load.Stream, r *load.RankReport) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ranks[targetKey{r.WorkerID, r.Load.DPRank}] = true
	s.newest = runningOf(r)
	s.received++
	return nil
}

func (s *followSink) Release(*load.Stream) {}

func (s *followSink) SetRankNote(worker string, rank int32, note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes[targetKey{worker, rank}] = note
}

func (s *followSink) state() state {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := state{Ranks: len(s.ranks), Newest: s.newest, Received: s.received, Noted: make(map[string]int)}
	for _, n := range s.notes {
		first, _, _ := strings.Cut(n, ":")
		if strings.Contains(n, "no load message") {
			first = "silent"
		}
		if n != "" {
			st.Noted[first]++
		}
	}
	return st
}
