//go:build interop

package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sglang_engine.py is an engine whose load is published on ZMQ by the code of a released SGLang package, which
// sglang_release.py loads. peers holds those packages and what they import; sglang_fetch gets them.
const peers = root + "/.cache/sglang"

// sglang are the releases that run: the first that publishes its load, with six elements, and the newest, with eleven.
var sglang = []struct {
	version string
	rates   bool // sends the five elements that were appended
}{
	{version: "0.5.19"},
	{version: "0.5.23", rates: true},
}

const sglangRanks = 3

// Every number that the load publisher of a release sends is in the snapshot, under the rank whose socket it came from.
func TestSGLang_EveryNumberArrives(t *testing.T) {
	for _, release := range sglang {
		t.Run(release.version, func(t *testing.T) {
			t.Parallel()
			engine := startSGLang(t, release.version, 0, 0)
			monitor := startMonitor(t, engine.url())

			// Capacity 0 is one that is not known, and no reason to doubt the rank (VAL5).
			w := monitor.await(t, "an engine without numbers yet is fresh", func(w worker) string {
				return w.differs("fresh", make([]published, sglangRanks), release.rates)
			})
			block := engine.describe(t)
			if want := engine.KVPort + 1 + sglangRanks; block.Load != want || block.Topic != "load" || block.Size != sglangRanks {
				t.Errorf("the release advertises %+v, want load port %d behind the replay ports", block, want)
			}
			if w.Transport != "zmq" || !strings.Contains(w.TransportReason, strconv.Itoa(block.Load)) {
				t.Errorf("transport %q because of %q, want zmq because of port %d", w.Transport, w.TransportReason, block.Load)
			}
			if w.ExpectedRanks != sglangRanks || w.Restarts != 0 {
				t.Errorf("%d expected ranks and %d restarts, want %d and 0", w.ExpectedRanks, w.Restarts, sglangRanks)
			}

			for step := range int64(8) {
				loads := make([]published, sglangRanks)
				for r := range loads {
					// No two numbers of a step are alike, and none is the same in the next.
					n := 1000*step + 100*int64(r)
					loads[r] = published{
						Running: n + 1, Waiting: n + 2, Used: n + 3, Capacity: n + 50,
						Uncached: n + 4, Total: n + 5, Slots: n + 6, PrefillTokens: n + 7, PrefillBusy: n + 8,
					}
				}
				if step == 5 { // more than a double holds
					loads[0].Used, loads[0].Total, loads[0].Capacity = 1<<53+1, 1<<53+3, 1<<53+5
				}
				if step == 6 { // and idle again
					loads[1] = published{Capacity: 9000, PrefillTokens: loads[1].PrefillTokens, PrefillBusy: loads[1].PrefillBusy}
				}
				engine.publish(t, loads[0], loads[1], loads[2])
				monitor.await(t, fmt.Sprintf("step %d", step), func(w worker) string {
					return w.differs("fresh", loads, release.rates)
				})
			}
		})
	}
}

// A scheduler that hangs makes its own rank stale, says why, and leaves the others fresh; its worker is not.
func TestSGLang_SilentRank(t *testing.T) {
	for _, release := range sglang {
		t.Run(release.version, func(t *testing.T) {
			t.Parallel()
			engine := startSGLang(t, release.version, 0, 0)
			monitor := startMonitor(t, engine.url())
			a, b, c := published{Running: 1, Capacity: 900}, published{Running: 2, Capacity: 900}, published{Running: 3, Capacity: 900}
			engine.publish(t, a, b, c)
			monitor.await(t, "all ranks publish", func(w worker) string {
				return w.differs("fresh", []published{a, b, c}, release.rates)
			})

			a.Running = 7
			engine.publish(t, a, nil, c)
			w := monitor.await(t, "rank 1 hangs", func(w worker) string {
				if w.Freshness != "stale" || w.rank(0).Running == nil || *w.rank(0).Running != 7 {
					return "not stale, or rank 0 not at its new load"
				}
				return cmp.Diff([]string{"fresh", "stale", "fresh"}, []string{w.rank(0).Freshness, w.rank(1).Freshness, w.rank(2).Freshness})
			})
			if w.Reason == "" || w.rank(1).Reason == "" || w.rank(0).Reason != "" || w.rank(2).Reason != "" {
				t.Errorf("reasons %q of the worker and %q, %q, %q of its ranks, want some of the worker and of rank 1",
					w.Reason, w.rank(0).Reason, w.rank(1).Reason, w.rank(2).Reason)
			}
			t.Logf("worker: %s; rank 1: %s", w.Reason, w.rank(1).Reason)

			b.Running = 8
			engine.publish(t, a, b, c)
			w = monitor.await(t, "rank 1 is back", func(w worker) string {
				return w.differs("fresh", []published{a, b, c}, release.rates)
			})
			if w.Restarts != 0 {
				t.Errorf("%d restarts, want none", w.Restarts)
			}
		})
	}
}

// A release that cannot bind a rank's load port starts all the same and advertises it: the rank is missing and says why.
func TestSGLang_RankWithoutSocket(t *testing.T) {
	for _, release := range sglang {
		t.Run(release.version, func(t *testing.T) {
			t.Parallel()
			engine := startSGLang(t, release.version, 0, 0, "2")
			if diff := cmp.Diff([]bool{true, true, false}, engine.Bound); diff != "" {
				t.Fatalf("sockets of the ranks (-want +got):\n%s", diff)
			}
			monitor := startMonitor(t, engine.url())
			a, b := published{Running: 1, Capacity: 900}, published{Running: 2, Capacity: 900}
			engine.publish(t, a, b, published{Running: 3, Capacity: 900})
			w := monitor.await(t, "two of three ranks publish", func(w worker) string {
				if w.rank(0).Running == nil || *w.rank(0).Running != 1 || w.rank(1).Running == nil || *w.rank(1).Running != 2 {
					return "ranks 0 and 1 not at their load"
				}
				return cmp.Diff([]string{"fresh", "fresh", "missing"}, []string{w.rank(0).Freshness, w.rank(1).Freshness, w.rank(2).Freshness})
			})
			if w.Freshness == "fresh" || w.ExpectedRanks != sglangRanks || w.rank(2).Reason == "" {
				t.Errorf("worker %s with %d expected ranks, rank 2 missing because of %q; want it not fresh, %d ranks and a reason",
					w.Freshness, w.ExpectedRanks, w.rank(2).Reason, sglangRanks)
			}
			t.Logf("worker: %s, %s; rank 2: %s", w.Freshness, w.Reason, w.rank(2).Reason)
		})
	}
}

// An engine that is killed and started anew at its ports begins its sequence at 0: what it publishes counts at once, and
// one restart is counted.
func TestSGLang_Restart(t *testing.T) {
	for _, release := range sglang {
		t.Run(release.version, func(t *testing.T) {
			t.Parallel()
			engine := startSGLang(t, release.version, 0, 0)
			monitor := startMonitor(t, engine.url())
			var loads []published
			for n := range int64(20) { // the sequence rises well above that of a new process
				loads = []published{{Running: n, Capacity: 900}, {Running: n + 1, Capacity: 900}, {Running: n + 2, Capacity: 900}}
				engine.publish(t, loads[0], loads[1], loads[2])
				monitor.await(t, "before the restart", func(w worker) string { return w.differs("fresh", loads, release.rates) })
			}

			if err := engine.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			engine.wait(t)
			engine = startSGLang(t, release.version, engine.HTTPPort, engine.KVPort)
			for n := range int64(3) {
				for r := range loads {
					loads[r] = published{Running: 50 + n + int64(r), Waiting: n, Used: 10, Capacity: 800, PrefillTokens: n, PrefillBusy: n}
				}
				engine.publish(t, loads[0], loads[1], loads[2])
				monitor.await(t, "after the restart", func(w worker) string {
					if diff := w.differs("fresh", loads, release.rates); diff != "" || w.Restarts == 1 {
						return diff
					}
					return fmt.Sprintf("%d restarts, want 1", w.Restarts)
				})
			}
		})
	}
}

// published is what a scheduler says; LoadSnapshot names it so.
type published struct {
	Running       int64 `json:"num_running_reqs"`
	Waiting       int64 `json:"num_waiting_reqs"`
	Used          int64 `json:"num_used_tokens"`
	Capacity      int64 `json:"max_total_num_tokens"`
	Uncached      int64 `json:"num_waiting_uncached_tokens"`
	Total         int64 `json:"num_total_tokens"`
	Slots         int64 `json:"max_running_requests"`
	PrefillTokens int64 `json:"total_prefill_uncached_tokens"`
	PrefillBusy   int64 `json:"total_prefill_busy_us"`
}

// rank is what REST says of one; a number that is not known is nil.
type rank struct {
	Rank          int    `json:"dp_rank"`
	Freshness     string `json:"freshness"`
	Reason        string `json:"reason"`
	Running       *int64 `json:"num_running_reqs"`
	Waiting       *int64 `json:"num_waiting_reqs"`
	Used          *int64 `json:"num_used_tokens"`
	Capacity      *int64 `json:"max_total_num_tokens"`
	Uncached      *int64 `json:"num_waiting_uncached_tokens"`
	Total         *int64 `json:"num_total_tokens"`
	Slots         *int64 `json:"max_running_requests"`
	PrefillTokens *int64 `json:"total_prefill_uncached_tokens"`
	PrefillBusy   *int64 `json:"total_prefill_busy_us"`
}

// worker is what REST says of one.
type worker struct {
	Freshness       string `json:"freshness"`
	Reason          string `json:"reason"`
	Transport       string `json:"transport"`
	TransportReason string `json:"transport_reason"`
	ExpectedRanks   int    `json:"expected_ranks"`
	Restarts        int    `json:"restarts"`
	Ranks           []rank `json:"ranks"`
}

// rank returns a rank, or an empty one.
func (w worker) rank(n int) rank {
	for _, r := range w.Ranks {
		if r.Rank == n {
			return r
		}
	}
	return rank{}
}

// differs compares the worker's freshness and ranks with what the engine publishes, rates included where it sends them.
func (w worker) differs(freshness string, loads []published, rates bool) string {
	if w.Freshness != freshness {
		return fmt.Sprintf("%s (%s), want %s", w.Freshness, w.Reason, freshness)
	}
	var want []rank
	for i, p := range loads {
		r := rank{Rank: i, Freshness: "fresh", Running: &p.Running, Waiting: &p.Waiting, Used: &p.Used}
		if p.Capacity > 0 {
			r.Capacity = &p.Capacity
		}
		if rates {
			r.Uncached, r.Total, r.PrefillTokens, r.PrefillBusy = &p.Uncached, &p.Total, &p.PrefillTokens, &p.PrefillBusy
			if p.Slots > 0 {
				r.Slots = &p.Slots
			}
		}
		want = append(want, r)
	}
	return cmp.Diff(want, w.Ranks)
}

// sglangEngine is a process of sglang_engine.py, and what its first line says.
type sglangEngine struct {
	*process
	HTTPPort int    `json:"http_port"`
	KVPort   int    `json:"kv_port"`
	Version  string `json:"version"`
	Bound    []bool `json:"bound"`
}

// startSGLang starts an engine at the ports, 0 for any. Further arguments are those of sglang_engine.py.
func startSGLang(t *testing.T, version string, httpPort, kvPort int, more ...string) *sglangEngine {
	t.Helper()
	args := append([]string{"sglang_engine.py", filepath.Join(peers, "packages"), wheel(t, version), strconv.Itoa(sglangRanks),
		strconv.Itoa(httpPort), strconv.Itoa(kvPort)}, more...)
	e := &sglangEngine{process: start(t, python, args...)}
	line := e.line(t)
	if err := json.Unmarshal([]byte(line), e); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	if e.Version != version {
		t.Fatalf("the release calls itself %s, want %s", e.Version, version)
	}
	return e
}

// wheel returns the file of a release.
func wheel(t *testing.T, version string) string {
	t.Helper()
	wheels, err := filepath.Glob(filepath.Join(peers, "sglang-"+version+"-*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("%d wheels of sglang %s in %s, %v: run make interop, which fetches it", len(wheels), version, peers, err)
	}
	return wheels[0]
}

func (e *sglangEngine) url() string { return "http://127.0.0.1:" + strconv.Itoa(e.HTTPPort) }

// publish sets what the ranks say from now on: a published, or nil for a scheduler that hangs.
func (e *sglangEngine) publish(t *testing.T, loads ...any) {
	t.Helper()
	body, err := json.Marshal(loads)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(e.url()+"/loads", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}

// described is the block with which the release advertises its sockets.
type described struct {
	Size  int    `json:"dp_size"`
	Load  int    `json:"load_endpoint_port_base"`
	Topic string `json:"load_topic"`
}

func (e *sglangEngine) describe(t *testing.T) described {
	t.Helper()
	var info struct {
		Block described `json:"kv_events"`
	}
	get(t, e.url()+"/server_info", &info)
	return info.Block
}

// startedMonitor is a monitor with one worker.
type startedMonitor struct {
	*process
	url string
}

func startMonitor(t *testing.T, engine string) *startedMonitor {
	t.Helper()
	m := &startedMonitor{process: start(t, binary, "serve", "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
		"--worker", engine, "--zmq-stale-after", "2500ms")}
	m.url = "http://" + m.logged(t, regexp.MustCompile(`msg=serving grpc=\S+ http=(\S+)`))[1]
	return m
}

// await polls until the worker no longer differs from what is wanted, and returns it.
func (m *startedMonitor) await(t *testing.T, what string, differs func(worker) string) worker {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	guard := time.After(hangGuard)
	for {
		var snapshot struct {
			Workers []worker `json:"workers"`
		}
		get(t, m.url+"/v1/load_monitor/snapshot", &snapshot)
		difference := fmt.Sprintf("%d workers, want 1", len(snapshot.Workers))
		if len(snapshot.Workers) == 1 {
			if difference = differs(snapshot.Workers[0]); difference == "" {
				return snapshot.Workers[0]
			}
		}
		select {
		case <-tick.C:
		case <-guard:
			t.Fatalf("%s: not within %v; last: %s", what, hangGuard, difference)
		}
	}
}

func get(t *testing.T, url string, into any) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		t.Fatalf("%s: %v", url, err)
	}
}
