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
		if after == nil || after.Freshness != load.Fresh || after.Handle != before.Handle || !after.Worker.Equal(before.Worker) {
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
