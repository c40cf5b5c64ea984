package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/internal/proxy"
)

// The life of a fleet with a fifth of the default window: kill -9 and SIGSTOP make workers stale within the window, which a
// waiting watch learns unprompted, give or take what a busy machine needs to run it; a new start makes them fresh again
// within 7 s and counts a restart, SIGCONT as well and counts none.
func TestFleet_KilledAndStoppedEnginesGoStaleAndComeBack(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const n = 3
	ports := portRange(t, 2*n)
	killed, urls := simulate(t, n, 2, ports, "1")
	stopped, more := simulate(t, n, 2, ports+n, "2")
	list := write(t, "workers", strings.Join(append(urls, more...), "\n")+"\n")
	m := serve(t, append(fast, "--workers-file", list)...)
	m.until(ctx, "not all fresh", allFresh(2*n))

	watch := start(t, "watch", "--grpc", m.grpc, "-o", "json")
	events := make(chan change, 1024)
	go func() {
		defer close(events)
		for watch.stdout.Scan() {
			var c change
			if json.Unmarshal(watch.stdout.Bytes(), &c) == nil {
				events <- c
			}
		}
	}()
	// await reads the watch until every worker of the list was last seen with the freshness.
	state := map[string]change{}
	await := func(within time.Duration, list []string, freshness string, restarts uint32) {
		t.Helper()
		timeout := time.After(within)
		for {
			there := 0
			for _, url := range list {
				if c := state[strings.TrimPrefix(url, "http://")]; c.Freshness == freshness && *c.Restarts == restarts && *c.RankCount == 2 {
					there++
				}
			}
			if there == len(list) {
				return
			}
			select {
			case c, ok := <-events:
				if !ok {
					t.Fatal("watch ended")
				}
				if c.Event == "worker" {
					state[c.WorkerID] = c
				}
			case <-timeout:
				t.Fatalf("not %s with %d restarts within %v: %v", freshness, restarts, within, state)
			}
		}
	}
	const staleWithin = 600*time.Millisecond + 5*time.Second // the window, and what a busy machine may need
	await(time.Minute, append(urls, more...), "fresh", 0)

	if err := killed.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	await(staleWithin, urls, "stale", 0)
	if err := stopped.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	await(staleWithin, more, "stale", 0)
	<-killed.exited

	simulate(t, n, 2, ports, "1")
	await(7*time.Second, urls, "fresh", 1)
	if err := stopped.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await(7*time.Second, more, "fresh", 0)
}

// An engine that comes back before anybody missed it has forgotten its lease. The end of its stream makes the monitor ask
// it anew at once, and not when the lease is due, 20 s later.
func TestFleet_QuickRestartDoesNotWaitForTheLease(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ports := portRange(t, 2)
	fleet, urls := simulate(t, 2, 1, ports, "1")
	m := serve(t, append(fast, "--lease", "60s", "--workers-file", write(t, "workers", strings.Join(urls, "\n")+"\n"))...)
	m.until(ctx, "not all fresh", allFresh(2))
	if err := fleet.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-fleet.exited
	simulate(t, 2, 1, ports, "1")
	soon, cancel := context.WithTimeout(ctx, 10*time.Second) // the renewal would come after 15 s at the earliest
	defer cancel()
	m.until(soon, "the new lives are not fresh long before the lease is due", func(s snapshotJSON) bool {
		for _, w := range s.Workers {
			if w.Freshness != "fresh" || w.Restarts != 1 {
				return false
			}
		}
		return len(s.Workers) == 2
	})
}

// withDeadWorkers lists 17 engines that report and three that do not exist.
func withDeadWorkers(t *testing.T) (file string) {
	t.Helper()
	_, urls := simulate(t, 17, 1, portRange(t, 17), "1")
	for _, addr := range freePorts(t, 3) {
		urls = append(urls, "http://"+addr)
	}
	return write(t, "workers", strings.Join(urls, "\n")+"\n")
}

// Case M5: not ready before the first discovery pass; dead workers do not hold readiness back and are listed.
func TestServe_ReadyWithDeadWorkers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m := serve(t, append(fast, "--workers-file", withDeadWorkers(t))...)
	for {
		status, body := m.get(ctx, "/readyz")
		if status == http.StatusOK {
			break
		}
		if status != http.StatusServiceUnavailable || len(body) == 0 {
			t.Errorf("readyz answers %d %q", status, body)
		}
		m.pause(ctx, "not ready")
	}
	m.until(ctx, "the whole fleet", func(s snapshotJSON) bool {
		// The JSON may be a rendering from a moment before. What it must never show is a fleet that is known and short.
		if s.Summary.State != "warming_up" && (s.Summary.State != "ready" || s.Summary.Workers != 20) {
			t.Errorf("state %s with %d workers", s.Summary.State, s.Summary.Workers)
		}
		return s.Summary.State == "ready"
	})
	m.until(ctx, "17 fresh and 3 missing", func(s snapshotJSON) bool { return s.Summary.Fresh == 17 && s.Summary.Missing == 3 })
}

// Rule LIFE1 and case M1: SIGTERM ends everything in order although streams are open.
func TestServe_EndsInOrder(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, urls := simulate(t, 4, 1, portRange(t, 4), "1")
	m := serve(t, append(fast, "--workers-file", write(t, "workers", strings.Join(urls, "\n")+"\n"))...)
	m.until(ctx, "not all fresh", allFresh(4))
	watch := start(t, "watch", "--grpc", m.grpc, "-o", "json")
	for !strings.Contains(watch.line(), `"event":"worker"`) {
	}
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := m.wait(20 * time.Second); code != 0 {
		t.Errorf("exit code %d\n%s", code, m.stderr)
	}
	for { // the watcher hears a reason and goes on waiting for the monitor
		var c change
		if err := json.Unmarshal([]byte(watch.line()), &c); err != nil {
			t.Fatal(err)
		}
		if c.Event == "link" && c.Link != "up" {
			break
		}
	}
	log := m.stderr.String()
	order := -1
	for _, line := range []string{"msg=serving ", `msg="shutting down"`, "msg=ended "} {
		if at := strings.Index(log, line); at <= order || strings.Count(log, line) != 1 {
			t.Errorf("want one line with %q, after those before:\n%s", line, log)
		} else {
			order = at
		}
	}
}

// Rule LIFE1: a peer that takes nothing holds the drain up until the grace period is over, or a second signal.
func TestServe_SecondSignalEndsAtOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m := serve(t, "--shutdown-grace", "10m")
	m.get(ctx, "/healthz")
	between := proxy.Start(t, m.grpc)
	watch := start(t, "watch", "--grpc", between.Addr(), "-o", "json")
	watch.next(func(c change) bool { return c.Link == "up" })
	between.Freeze()
	watch.next(func(c change) bool { return strings.Contains(c.Link, "silent") }) // what was on its way has arrived
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(m.stderr.String(), "shutting down") {
		m.pause(ctx, "the first signal does nothing")
	}
	for { // the signals get their default effect back at about the time of the log line
		_ = m.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-m.exited:
			if ws := m.cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGTERM {
				t.Errorf("ended with %v: want by the signal", m.cmd.ProcessState)
			}
			return
		default:
		}
		m.pause(ctx, "the second signal does nothing")
	}
}

// The pipeline of simulate's help: the list of workers ends, although the fleet goes on.
func TestSimulate_PrintsURLsAndClosesStandardOutput(t *testing.T) {
	p, urls := simulate(t, 3, 1, portRange(t, 3), "1")
	if p.stdout.Scan() {
		t.Errorf("more than the URLs on standard output: %q", p.stdout.Text())
	}
	for _, url := range urls {
		resp, err := http.Get(url + "/server_info")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s/server_info answers %s", url, resp.Status)
		}
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(10 * time.Second); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.stderr)
	}
}

func TestDemo_SaysWhatHappened(t *testing.T) {
	out, stderr, code := invoke(t, nil, "",
		"demo", "--workers", "3", "--ranks", "2", "--duration", "4s", "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
		"--report-interval", "200ms")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{"3 workers: 3 fresh", "reports accepted", "reports refused", "versions published", "p50", "p99", "curl -s http://127.0.0.1:"} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
}

// Nothing has begun yet, so the first signal ends the program although its configuration never comes.
func TestServe_CanBeInterruptedWhileItReadsWorkers(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	p := &program{args: []string{"serve", "--workers-file", "-"}, stdin: r, stdout: io.Discard, stderr: io.Discard, lookupEnv: os.LookupEnv}
	done := make(chan int, 1)
	go func() { done <- p.run(ctx) }()
	cancel()
	if code := <-done; code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}
