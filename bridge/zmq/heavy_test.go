//go:build cases

// The cases of this file need thousands of sockets or minutes; `make cases` runs them.

package zmq

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/bridge/zmq/zmqtest"
	"github.com/loadmonitor/loadmonitor/internal/proxy"
)

// fleet starts publishers in a process of their own and returns their endpoints as one line.
func fleet(t testing.TB, n int, hz float64) string {
	t.Helper()
	cmd, in, out := play(t, "publish", strconv.Itoa(n), fmt.Sprint(hz))
	endpoints, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("publishers: %v", err)
		}
	})
	return endpoints
}

type follower struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func follow(t testing.TB, endpoints string, files, times int) *follower {
	t.Helper()
	cmd, in, out := play(t, "follow", strconv.Itoa(files), strconv.Itoa(times))
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("bridge: %v", err)
		}
	})
	if _, err := io.WriteString(in, endpoints); err != nil {
		t.Fatal(err)
	}
	return &follower{t, cmd, in, out}
}

func (f *follower) state(targets ...int) state {
	f.t.Helper()
	line := "\n"
	if len(targets) > 0 {
		line = fmt.Sprintf("%d\n", targets[0])
	}
	if _, err := io.WriteString(f.in, line); err != nil {
		f.t.Fatal(err)
	}
	answer, err := f.out.ReadString('\n')
	if err != nil {
		f.t.Fatal(err)
	}
	var st state
	if err := json.Unmarshal([]byte(answer), &st); err != nil {
		f.t.Fatal(err)
	}
	return st
}

func (f *follower) await(what string, within time.Duration, holds func(st state) bool) state {
	f.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); ; <-tick.C {
		st := f.state()
		if holds(st) {
			f.t.Logf("%s after %v: %+v", what, time.Since(began).Round(100*time.Millisecond), st)
			return st
		}
		if time.Since(began) > within {
			f.t.Fatalf("waiting for %s: %+v", what, st)
		}
	}
}

// Case F3: 200 workers of 8 ranks.
func TestHeavy_SixteenHundredSockets(t *testing.T) {
	f := follow(t, fleet(t, 1600, 1), 0, 1)
	f.await("all ranks to have data", time.Minute, func(st state) bool { return st.Ranks == 1600 && st.Sockets == 1600 })
}

// Case F3: 60 workers of 8 ranks with 256 open files. The process stays up and accepts, the others say why, and sockets
// that come free are used.
func TestHeavy_FewFiles(t *testing.T) {
	f := follow(t, fleet(t, 480, 5), 256, 1)
	st := f.await("some ranks to have data", time.Minute, func(st state) bool { return st.Ranks == st.Sockets && st.Sockets > 20 && st.Sockets+st.Starved == 480 })
	if !st.Accepts || st.Noted["too many open files"] != st.Starved || st.Files > 256-32 {
		t.Errorf("state %+v", st)
	}
	open := st.Sockets
	// The first ranks got the sockets: all but 10 of them leave, and as many others must follow.
	f.state(10)
	f.await("the others to leave", time.Minute, func(st state) bool { return st.Sockets == 10 && st.Starved == 0 })
	f.state(480)
	st = f.await("others to have data", time.Minute, func(st state) bool { return st.Sockets == open })
	if !st.Accepts {
		t.Errorf("state %+v", st)
	}
}

// Case F6: a process that was stopped for 10 s shows the newest message within a second, and did not grow meanwhile.
func TestHeavy_StoppedProcessCatchesUp(t *testing.T) {
	const hz = 2000
	endpoints := fleet(t, 1, hz)
	f, running := follow(t, endpoints, 0, 1), follow(t, endpoints, 0, 1)
	before := f.await("data", time.Minute, func(st state) bool { return st.Received > 1000 })
	if err := f.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second)
	if err := f.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	st := f.state()
	if grown := st.RSS - before.RSS; grown > 50<<20 {
		t.Errorf("grown by %d bytes", grown)
	}
	if newest := running.state().Newest; newest-st.Newest > hz/5 || st.Newest-newest > hz/5 {
		t.Errorf("newest message %d, a bridge that was not stopped has %d", st.Newest, newest)
	}
}

// Case F7: many idle ranks and a busy one cost less than half a core.
func TestHeavy_OneBusyRankAmongMany(t *testing.T) {
	const idle, seconds = 1023, 20
	f := follow(t, strings.TrimSpace(fleet(t, idle, 1))+" "+fleet(t, 1, 1000), 0, 1)
	before := f.await("all ranks", time.Minute, func(st state) bool { return st.Ranks == idle+1 })
	time.Sleep(seconds * time.Second)
	st := f.state()
	share, busy := st.CPU.Seconds()/st.Wall.Seconds(), st.Received-before.Received-idle*seconds
	if share > 0.5 {
		t.Errorf("%.0f %% of a core", 100*share)
	}
	// It is about 100 a second by the rate cap; one more or less of each idle rank may fall into that time.
	if busy < 20*seconds {
		t.Errorf("%d messages of the busy rank in %d s", busy, seconds)
	}
	t.Logf("%.1f %% of a core, about %d messages of the busy rank a second", 100*share, busy/seconds)
}

// Section 6 of the design: threads with 8,192 sockets, and what they cost when their publishers are silent.
func TestHeavy_EightThousandSockets(t *testing.T) {
	for _, c := range []struct {
		name string
		hz   float64
	}{{"1 Hz", 1}, {"silent", 0}} {
		t.Run(c.name, func(t *testing.T) {
			f := follow(t, fleet(t, 1024, c.hz), 0, 8)
			st := f.await("all sockets", 2*time.Minute, func(st state) bool {
				return st.Sockets == 8192 && (c.hz == 0 || st.Ranks == 8192)
			})
			most := st.Threads
			for range 6 {
				time.Sleep(10 * time.Second)
				st := f.state()
				most = max(most, st.Threads)
				share := st.CPU.Seconds() / st.Wall.Seconds()
				t.Logf("%.2f %% of a core, %d threads, %d MiB, %d redials", 100*share, st.Threads, st.RSS>>20, st.Redials)
				// The target of 2 % holds on a quiet machine; what costs with every socket shows on any.
				if c.hz == 0 && share > 0.15 {
					t.Errorf("%.2f %% of a core while nobody speaks", 100*share)
				}
			}
			if most > 16 {
				t.Errorf("%d threads, want at most 16", most)
			}
		})
	}
}

// Case F1 with the options of production: 30 s behind a frozen link, then another publisher at the address.
func TestHeavy_FrozenLink(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	old := publish(t, c, anyPort, running(1))
	p := proxy.Start(t, strings.TrimPrefix(old.endpoint, "tcp://"))
	b, _ := start(t, Options{Sink: s}, target("w", 0, "tcp://"+p.Addr()))
	s.awaitReports(t, "w", 0, 3)
	p.Freeze()
	time.Sleep(30 * time.Second)
	other := publish(t, c, anyPort, running(2))
	p.Retarget(strings.TrimPrefix(other.endpoint, "tcp://"))
	old.stop()
	p.Unfreeze()
	began := time.Now()
	s.await(t, "the new publisher", func() bool {
		got := s.reports[targetKey{"w", 0}]
		return runningOf(&got[len(got)-1]) == 2
	})
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("data of the new publisher after %v", took)
	} else {
		t.Logf("data of the new publisher after %v", took)
	}
	if metric(t, b, "zmq_silences_total") == 0 {
		t.Error("something else than the silence was noticed")
	}
}

// Case L4 with the options of production.
func TestHeavy_MovedName(t *testing.T) {
	t.Parallel()
	c, s, z := testContext(t), newRecorder(), newZone()
	z.point("pod.example", "127.0.0.2")
	old := publish(t, c, "tcp://127.0.0.2:*", running(1))
	start(t, Options{Sink: s, Resolve: z.resolve}, named("w", 0, "pod.example", old.endpoint))
	s.awaitReports(t, "w", 0, 2)
	old.stop()
	s.awaitNote(t, "w", 0, "refuses connections")
	publish(t, c, strings.Replace(old.endpoint, "127.0.0.2", "127.0.0.3", 1), running(3))
	z.point("pod.example", "127.0.0.3")
	began := time.Now()
	s.await(t, "data from where the name points to", func() bool {
		got := s.reports[targetKey{"w", 0}]
		return runningOf(&got[len(got)-1]) == 3
	})
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("followed after %v", took)
	} else {
		t.Logf("followed after %v", took)
	}
}

// Case F8 with the options of production: SYNs are dropped for 5 s, starting just before the rank is dialled anew.
func TestHeavy_DroppedSYNs(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	e := publish(t, c, anyPort, running(1))
	start(t, Options{Sink: s}, target("w", 0, e.endpoint))
	s.awaitReports(t, "w", 0, 2)
	e.stop()
	_, port := split(e.endpoint)
	unblock := blackHole(t, port)
	time.Sleep(5 * time.Second)
	unblock()
	publish(t, c, e.endpoint, running(2))
	began := time.Now()
	s.awaitMore(t, "w", 0)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("connected after %v", took)
	} else {
		t.Logf("connected after %v", took)
	}
}

// Case F4: 64 ranks, collections in a loop and 2,000 signals a second, for a minute.
func TestHeavy_Signals(t *testing.T) {
	c, s := testContext(t), newRecorder()
	var targets []Target
	for r := range int32(64) {
		targets = append(targets, target("w", r, publish(t, c, anyPort, running(1)).endpoint))
	}
	var out safeBuffer
	b, _ := start(t, Options{Sink: s, Logger: newTestLogger(&out)}, targets...)
	for r := range int32(64) {
		s.awaitReports(t, "w", r, 1)
	}
	before := out.String() // the start
	var over atomic.Bool
	var noise sync.WaitGroup
	noise.Go(func() {
		for !over.Load() {
			runtime.GC()
		}
	})
	noise.Go(func() {
		for !over.Load() {
			_ = syscall.Kill(os.Getpid(), syscall.SIGURG)
			_ = syscall.Kill(os.Getpid(), syscall.SIGWINCH)
			time.Sleep(time.Millisecond)
		}
	})
	for began := time.Now(); time.Since(began) < time.Minute; {
		for r := range int32(64) {
			s.awaitMore(t, "w", r)
		}
		s.mu.Lock()
		clear(s.reports)
		s.mu.Unlock()
	}
	over.Store(true)
	noise.Wait()
	if len(s.history) > 0 || metric(t, b, "zmq_connects_total") != 64 {
		t.Errorf("notes %v, %v connections", s.history, metric(t, b, "zmq_connects_total"))
	}
	if logged := out.String(); logged != before {
		t.Errorf("logged %s", logged[len(before):])
	}
}

// Case F9: 50 workers of 8 ranks come and go a thousand times while all deliver, and the bridge ends in the middle.
func TestHeavy_ComeAndGo(t *testing.T) {
	c, s := testContext(t), newRecorder()
	var targets []Target
	var endpoints []string
	for range 50 {
		endpoints = append(endpoints, publish(t, c, anyPort, running(1)).endpoint)
	}
	for i := range int32(400) {
		targets = append(targets, target("w"+strconv.Itoa(int(i/8)), i%8, endpoints[i/8]))
	}
	freePort(t)
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	b, stop := start(t, Options{Sink: s, Owners: 2}, targets...)
	for round := range 1000 {
		s.awaitMore(t, "w0", 0)
		b.SetTargets(targets[:8+(round*37)%392])
		b.SetTargets(targets)
		s.mu.Lock()
		clear(s.reports)
		s.mu.Unlock()
	}
	b.SetTargets(targets[:100])
	stop()
	awaitBase(t, s, goroutines, files)
	if strings.Contains(s.describeLocked(), "too many") {
		t.Error(s.describeLocked())
	}
}

// A publisher that greets and is then too busy to shake hands loses libzmq's only connection to it. That end is noticed by
// itself, and the rank is dialled again without waiting behind silent ones.
func TestHeavy_FailedHandshakeIsNoticed(t *testing.T) {
	t.Parallel()
	s := newRecorder()
	var busy atomic.Bool
	busy.Store(true)
	p := serveRaw(t, false, func(c net.Conn) {
		if busy.Load() {
			_, _ = c.Write(greeting("NULL"))
			_, _ = io.Copy(io.Discard, c)
			return
		}
		if shakeHands(c) != nil {
			return
		}
		for n := int64(0); ; n++ {
			if _, err := c.Write(message("load", n, zmqtest.LoadStat(5, 0, 1, 1, 0))); err != nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	o := quick(s)
	o.Silence = time.Hour
	b, _ := start(t, o, target("w", 0, p.endpoint))
	// Silence dials again after 3 and 6 s; the third connection is left alone for long enough.
	s.awaitNoted(t, "w", 0, "ended the connection")
	if got := metric(t, b, "zmq_losses_total"); got == 0 {
		t.Error("no connection lost")
	}
	busy.Store(false)
	s.awaitReports(t, "w", 0, 1)
}
