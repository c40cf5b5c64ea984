//go:build cases

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/loadmonitor/loadmonitor/bridge/zmq/zmqtest"
)

// A thousand engines with eight ranks each, in two processes, and one engine with a rank that publishes at 1,000 Hz: the
// whole binary shows all of them fresh, minute after minute, with few threads. RSS and CPU are logged.
func TestHeavy_EightThousandPublishersAndABusyOne(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	const half, ranks = 512, 8
	var list []string
	for seed := range 2 {
		p := start(t, "simulate", "--workers", strconv.Itoa(half), "--ranks", strconv.Itoa(ranks), "--transport", "zmq", "--cycle", "1s", "--seed", strconv.Itoa(seed+1))
		for range half {
			list = append(list, p.line())
		}
	}
	list = append(list, busyEngine(t))
	began := time.Now()
	m := serve(t, "--workers-file", write(t, "workers", strings.Join(list, "\n")+"\n"))
	m.slowly(ctx, "all fresh", allFresh(2*half+1))
	t.Logf("all fresh after %v", time.Since(began).Round(100*time.Millisecond))

	before := usageOf(t, m.cmd.Process.Pid)
	from := m.slowly(ctx, "a snapshot", allFresh(2*half+1))
	for range 6 {
		time.Sleep(10 * time.Second)
		_, body := m.get(ctx, "/v1/load_monitor/snapshot")
		var s snapshotJSON
		if err := json.Unmarshal(body, &s); err != nil {
			t.Fatal(err)
		}
		u := usageOf(t, m.cmd.Process.Pid)
		wall := u.at.Sub(before.at)
		t.Logf("%.1f %% of a core, %d threads, %d MiB, %d versions/s", 100*(u.cpu-before.cpu).Seconds()/wall.Seconds(),
			u.threads, u.rss>>20, int(float64(s.Version-from.Version)/wall.Seconds()))
		if !allFresh(2*half + 1)(s) {
			t.Errorf("not all fresh: %+v", s.Summary)
		}
		if u.threads > 16 {
			t.Errorf("%d threads, want at most 16", u.threads)
		}
		before, from = u, s
	}
}

// slowly reads the snapshot once a second until it fits.
func (m *monitorProcess) slowly(ctx context.Context, what string, fits func(snapshotJSON) bool) snapshotJSON {
	m.t.Helper()
	return m.until(ctx, what, func(s snapshotJSON) bool {
		if fits(s) {
			return true
		}
		time.Sleep(time.Second)
		return false
	})
}

// busyEngine is an engine of one rank that publishes a thousand times a second, and returns its URL.
func busyEngine(t *testing.T) string {
	t.Helper()
	c, err := zmq4.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	p, err := zmqtest.NewPublisher(c, "tcp://127.0.0.1:*")
	if err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for n := int64(0); ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			if err := p.Send("load", n, zmqtest.LoadStat(n%100, 3, 1024, 8192, 0)); err != nil {
				t.Errorf("publish: %v", err)
				return
			}
		}
	}()
	port := p.Endpoint()[strings.LastIndex(p.Endpoint(), ":")+1:]
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/server_info" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, `{"model_path":"sim","dp_size":1,"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,`+
			`"topic":"kv","block_size":64,"dp_size":1,"load_endpoint_port_base":%s,"load_topic":"load"}}`, port)
	}))
	t.Cleanup(func() {
		close(stop)
		<-done
		s.Close()
		p.Close()
		_ = c.Term()
	})
	return s.URL
}

// usage is what a process takes.
type usage struct {
	at      time.Time
	cpu     time.Duration
	threads int
	rss     int64 // bytes
}

func usageOf(t *testing.T, pid int) usage {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// Fields 14, 15, 20 and 24 of proc_pid_stat(5), counted behind the command's name.
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	number := func(field int) int64 {
		n, err := strconv.ParseInt(f[field-3], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const tick = time.Second / 100 // of the clock that /proc counts in
	return usage{
		at: time.Now(), cpu: time.Duration(number(14)+number(15)) * tick, threads: int(number(20)),
		rss: number(24) * int64(os.Getpagesize()),
	}
}
