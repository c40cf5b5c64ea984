package fetching

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/registration"
)

// Case L4: the worker's name moves while another engine starts at the old address. The worker is followed to its new
// address, and what the other engine says is never shown as the worker's.
func TestL4_AMovedNameIsFollowed(t *testing.T) {
	for _, c := range []struct {
		name   string
		models []string
	}{{"model registered", []string{"m1"}}, {"model told by the engine", nil}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			first, at := anEngine(t, "127.0.0.2", "m1", 2, 1)
			m := startMonitor(t, map[string]string{"w.pool": "127.0.0.2"}, registration.Spec{ID: "w", URL: fmt.Sprintf("w.pool:%d", at.web), Models: c.models})
			before := m.until("the first engine", shows(1))

			first.stop()
			if _, ok := startPublisher(t, "127.0.0.2", "m2", at, 2, 2); !ok {
				t.Fatal("the ports of the first engine are taken")
			}
			if _, ok := startPublisher(t, "127.0.0.3", "m1", at, 2, 3); !ok {
				t.Fatal("the ports of the first engine are taken at another address")
			}
			// The other engine has the old address, and the name still leads there.
			if c.models == nil {
				m.until("the other engine as another worker", func(e *load.Entry) bool { return slices.Equal(e.Worker.Models, []string{"m2"}) && shows(2)(e) })
			} else {
				m.until("the reason", func(e *load.Entry) bool { return e.Freshness != load.Fresh && strings.Contains(e.Reason, `"m2"`) })
			}
			m.point("w.pool", "127.0.0.3")
			moved := time.Now()
			m.until("the engine at the new address", shows(3))
			if took := time.Since(moved); took > 15*time.Second {
				t.Errorf("the worker was followed after %v, want at most 15 s", took)
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			for seen := range m.seen {
				if strings.HasSuffix(seen, " 2") && (strings.Contains(seen, "m1") || strings.HasPrefix(seen, fmt.Sprint(before.Handle, " "))) {
					t.Errorf("the load of another engine was shown as this worker's: %s", seen)
				}
			}
		})
	}
}

// Case E4: dp_size falls from 8 to 2 while all sockets go on publishing. The others vanish in one version and stay gone.
func TestE4_FewerRanksVanishTogether(t *testing.T) {
	t.Parallel()
	e, at := anEngine(t, "127.0.0.1", "m1", 8, 1)
	m := startMonitor(t, nil, registration.Spec{ID: "w", URL: fmt.Sprintf("127.0.0.1:%d", at.web)})
	full := m.until("eight ranks", func(e *load.Entry) bool { return len(e.Ranks) == 8 && shows(1)(e) })
	e.mu.Lock()
	info := map[string]any{"kv_events": map[string]any{"load_endpoint_port_base": at.base, "load_topic": "load"}, "dp_size": 2,
		"served_model_name": "m1", "disaggregation_mode": "null"}
	e.info = info
	e.mu.Unlock()
	sizes := map[int]bool{}
	few := m.until("two ranks", func(e *load.Entry) bool {
		sizes[len(e.Ranks)] = true
		return len(e.Ranks) == 2 && shows(1)(e)
	})
	if few.Handle != full.Handle || len(sizes) > 2 {
		t.Errorf("handle %d, then %d; numbers of ranks %v, want 8 and 2 only", full.Handle, few.Handle, sizes)
	}
	p := m.Current()
	for range 10 {
		<-p.Next
		p = m.Current()
		if e, _ := p.Snapshot.Workers.Find("w"); len(e.Ranks) != 2 {
			t.Fatalf("%d ranks in a later version", len(e.Ranks))
		}
	}
}

// Case K2: /server_info hangs while the load goes on: the worker stays as it is.
func TestK2_ABusyEngineStaysFresh(t *testing.T) {
	t.Parallel()
	e, at := anEngine(t, "127.0.0.1", "m1", 2, 1)
	m := startMonitor(t, nil, registration.Spec{ID: "w", URL: fmt.Sprintf("127.0.0.1:%d", at.web)})
	before := m.until("the engine", shows(1))
	e.mu.Lock()
	e.hang = true
	e.mu.Unlock()
	for m.registry.Registrations()[0].ProbeError == "" {
		<-m.Current().Next
	}
	for end := time.After(3 * time.Second); ; {
		p := m.Current()
		after, _ := p.Snapshot.Workers.Find("w")
		if after == nil || after.Freshness != load.Fresh || after.Handle != before.Handle || !after.Worker.Equal(*before.Worker) {
			t.Fatalf("%+v while /server_info hangs, want it as before", after)
		}
		select {
		case <-p.Next:
		case <-end:
			return
		}
	}
}

// Case E2: four ranks publish elsewhere. They are missing until somebody says where, and then they are heard there.
func TestE2_RanksOnAnotherHost(t *testing.T) {
	t.Parallel()
	e, at := anEngine(t, "127.0.0.1", "m1", 2, 1)
	_, other := anEngine(t, "127.0.0.2", "m1", 2, 1)
	e.mu.Lock()
	e.info["dp_size"] = 4
	e.info["kv_events"].(map[string]any)["dp_size"] = 4
	e.mu.Unlock()
	url := fmt.Sprintf("127.0.0.1:%d", at.web)
	m := startMonitor(t, nil, registration.Spec{ID: "w", URL: url})
	m.until("half of the ranks", func(e *load.Entry) bool {
		_, total := e.Aggregate.Int(load.SumRunningReqs)
		return e.Freshness == load.Incomplete && len(e.Ranks) == 4 && e.Ranks[1].Freshness == load.Fresh && e.Ranks[2].Freshness == load.Missing && !total
	})
	list := []string{
		fmt.Sprintf("127.0.0.1:%d", at.base), fmt.Sprintf("127.0.0.1:%d", at.base+1),
		fmt.Sprintf("tcp://127.0.0.2:%d", other.base), fmt.Sprintf("127.0.0.2:%d", other.base+1),
	}
	if err := m.registry.SetStatic([]registration.Spec{{ID: "w", URL: url, LoadEndpoints: list}}); err != nil {
		t.Fatal(err)
	}
	m.until("all ranks", func(e *load.Entry) bool { return len(e.Ranks) == 4 && shows(1)(e) })
}

// Case D1: after a good message come negative ones. They are refused and counted, the good value stays until its deadline,
// and then the rank is stale and says why. Nothing negative is ever shown.
func TestD1_NegativeValuesAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, payload, field string
	}{
		{"running", "\x96\xa8LoadStat\xff\x00\x00\xcd\x03\xe8\x00", "num_running_reqs"},
		{"waiting", "\x96\xa8LoadStat\x03\xfb\x00\xcd\x03\xe8\x00", "num_waiting_reqs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e, at := anEngine(t, "127.0.0.1", "m1", 1, 7)
			m := startMonitor(t, nil, registration.Spec{ID: "w", URL: fmt.Sprintf("127.0.0.1:%d", at.web)})
			m.until("a good message", shows(7))
			e.says([]byte(c.payload))
			stale := m.until("the deadline", func(e *load.Entry) bool { return e.Freshness != load.Fresh })
			if n, _ := stale.Ranks[0].Load.Int(load.NumRunningReqs); stale.Freshness != load.Stale || n != 7 {
				t.Errorf("%s, running %d, want stale with the last good value", stale.Freshness, n)
			}
			if age := time.Duration(m.Now()-stale.RankReceived(0)) * time.Microsecond; age < stale.Window {
				t.Errorf("stale after %v, want the good message to stay for %v", age, stale.Window)
			}
			m.until("the reason", func(e *load.Entry) bool {
				return e.Freshness == load.Stale && strings.Contains(e.RankReason(0), c.field+" is negative")
			})
			if n := m.count("zmq_messages_rejected_total", "payload"); n == 0 {
				t.Error("they are not counted")
			}
			e.says(nil)
			m.until("a good message again", shows(7))
			m.mu.Lock()
			defer m.mu.Unlock()
			for seen := range m.seen {
				if !strings.HasSuffix(seen, " 7") {
					t.Errorf("shown: %s", seen)
				}
			}
		})
	}
}

// Case C8: a map of a busy engine, then one of an idle engine that leaves out what is zero: the figures fall to zero. Then
// silence: the worker counts as stale, and keeps its last values under that word.
func TestC8_FiguresFallWhenTheEngineIsIdle(t *testing.T) {
	t.Parallel()
	const capacity = "\xb4max_total_num_tokens\xcd\x03\xe8\xb4max_running_requests\x40"
	const busy = "\x84\xb0num_running_reqs\x08\xaegen_throughput\xcb\x40\x8c\x20\x00\x00\x00\x00\x00" + capacity // 900 tokens a second
	e, at := anEngine(t, "127.0.0.1", "m1", 1, 1)
	e.says([]byte(busy))
	m := startMonitor(t, nil, registration.Spec{ID: "w", URL: fmt.Sprintf("127.0.0.1:%d", at.web)})
	is := func(freshness load.Freshness, running int64, throughput float64) func(*load.Entry) bool {
		return func(e *load.Entry) bool {
			if e.Freshness != freshness {
				return false
			}
			n, told := e.Ranks[0].Load.Int(load.NumRunningReqs)
			f, known := e.Ranks[0].Load.Float(load.GenThroughput)
			sum, summed := e.Aggregate.Float(load.SumGenThroughput)
			return told && n == running && known && f == throughput && summed && sum == throughput
		}
	}
	m.until("a busy engine", is(load.Fresh, 8, 900))
	e.says([]byte("\x82" + capacity))
	m.until("an idle engine", is(load.Fresh, 0, 0))
	e.says([]byte(busy))
	m.until("a busy engine again", is(load.Fresh, 8, 900))
	e.fallSilent()
	m.until("silence", is(load.Stale, 8, 900))
	if s := m.Current().Snapshot.Summary; s.Fresh != 0 || s.Stale != 1 {
		t.Errorf("%+v, want one stale worker and no fresh one", s)
	}
}
