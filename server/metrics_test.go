package server

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/loadmonitor/loadmonitor/load"
)

// fakeFleet offers series for a set of workers.
type fakeFleet struct {
	mu      sync.Mutex
	workers []string
}

func (f *fakeFleet) set(workers ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.workers = workers
}

func (f *fakeFleet) metrics() []load.Metric {
	collect := func(v float64) func(func(float64, ...load.Label)) {
		return func(yield func(float64, ...load.Label)) {
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, w := range f.workers {
				yield(v, load.Label{Name: "worker", Value: w}, load.Label{Name: "zone", Value: "z1"})
			}
		}
	}
	return []load.Metric{
		{Name: "worker_fresh", Help: "1 when the worker is fresh.", Collect: collect(1)},
		{Name: "worker_reports_total", Help: "Accepted reports.", Counter: true, Collect: collect(42)},
	}
}

func TestMetrics_ExposesWhatRoomsOffer(t *testing.T) {
	fleet := &fakeFleet{}
	fleet.set("w1", `q"\w2`)
	r := start(t, Options{Metrics: fleet.metrics(), Version: "1.2.3", Revision: "abc"})
	send(t, report(t, r.dial()), sane("src", 1))
	next(t, r.ingest.applied, "report")
	resp, body := r.do(http.MethodGet, "/metrics", nil)
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	for _, want := range []string{
		"# HELP loadmonitor_worker_fresh 1 when the worker is fresh.\n# TYPE loadmonitor_worker_fresh gauge\n",
		`loadmonitor_worker_fresh{worker="w1",zone="z1"} 1` + "\n",
		`loadmonitor_worker_fresh{worker="q\"\\w2",zone="z1"} 1` + "\n",
		"# TYPE loadmonitor_worker_reports_total counter\n",
		`loadmonitor_worker_reports_total{worker="w1",zone="z1"} 42` + "\n",
		"loadmonitor_report_streams 1\n",
		`loadmonitor_report_streams_ended_total{reason="unknown_worker"} 0` + "\n",
		`loadmonitor_report_streams_ended_total{reason="too_many_streams"} 0` + "\n",
		`loadmonitor_connections{listener="grpc"} 1` + "\n",
		`loadmonitor_connections_refused_total{listener="http"} 0` + "\n",
		"loadmonitor_ready 1\n",
		`loadmonitor_build_info{`, `version="1.2.3"`, `revision="abc"`,
		"go_goroutines ", "process_open_fds ",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q", want)
		}
	}
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "loadmonitor_report_streams_ended_total") && strings.Contains(line, "too_many_watchers") {
			t.Errorf("no report stream ends so: %s", line)
		}
		if strings.Contains(line, "otel_scope") || strings.HasPrefix(line, "target_info") {
			t.Errorf("unwanted %s", line)
		}
	}
}

// Rule LIFE4 and case M3: a worker's series disappear with it, and come back with it.
func TestMetrics_SeriesVanishWithTheirWorker(t *testing.T) {
	fleet := &fakeFleet{}
	r := start(t, Options{Metrics: fleet.metrics()})
	for _, workers := range [][]string{{"w1", "w2"}, {"w2"}, {}, {"w1"}} {
		fleet.set(workers...)
		_, body := r.do(http.MethodGet, "/metrics", nil)
		for _, w := range []string{"w1", "w2"} {
			want := 0
			for _, there := range workers {
				if there == w {
					want = 2
				}
			}
			if n := strings.Count(body, `worker="`+w+`"`); n != want {
				t.Errorf("with workers %v there are %d series of %s, want %d", workers, n, w, want)
			}
		}
	}
}

// A large fleet is exposed whole: the SDK would fold everything beyond 2,000 series into one.
func TestMetrics_LargeFleetIsExposedWhole(t *testing.T) {
	workers := make([]string, 3000)
	for i := range workers {
		workers[i] = fmt.Sprint("w", i)
	}
	fleet := &fakeFleet{}
	fleet.set(workers...)
	r := start(t, Options{Metrics: fleet.metrics()})
	_, body := r.do(http.MethodGet, "/metrics", nil)
	if n := strings.Count(body, "\nloadmonitor_worker_fresh{"); n != 3000 || strings.Contains(body, "overflow") {
		t.Errorf("%d series", n)
	}
}

func TestNew_RefusesAMetricOfferedTwice(t *testing.T) {
	m := gauge("twice", "", func() float64 { return 0 })
	_, err := New(Options{Ingest: newFakeIngest(nil), Registry: &fakeRegistry{}, Snapshots: newFakeSnapshots(load.FleetReady),
		Metrics: []load.Metric{m, m}})
	if err == nil || !strings.Contains(err.Error(), `"twice"`) {
		t.Errorf("error is %v", err)
	}
}
