package server

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/loadmonitor/loadmonitor/load"
)

// fakeREST answers with the path.
type fakeREST struct{ ended chan struct{} }

func (f *fakeREST) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/watch") {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-f.ended:
			_, _ = io.WriteString(w, "bye\n")
		case <-r.Context().Done():
		}
		return
	}
	_, _ = io.WriteString(w, r.URL.Path)
}

func (f *fakeREST) Shutdown() { close(f.ended) }

func TestHTTP_PathsAndMethods(t *testing.T) {
	r := start(t, Options{REST: &fakeREST{ended: make(chan struct{})}})
	cases := []struct {
		method, path string
		status       int
		body         string // prefix
		allow        string
	}{
		{"GET", "/healthz", 200, "ok\n", ""},
		{"HEAD", "/healthz", 200, "", ""},
		{"POST", "/healthz", 405, `{"code":12`, "GET, HEAD"},
		{"GET", "/readyz", 200, "ready\n", ""},
		{"HEAD", "/readyz", 200, "", ""},
		{"GET", "/metrics", 200, "# HELP", ""},
		{"HEAD", "/metrics", 200, "", ""},
		{"GET", "/v1/load_monitor/snapshot", 200, "/v1/load_monitor/snapshot", ""},
		{"GET", "/v1/load_monitor/snapshot/", 200, "/v1/load_monitor/snapshot/", ""},
		{"GET", "/openapi.json", 200, "/openapi.json", ""},
		{"GET", "/", 404, `{"code":5,"message":"no such path"`, ""},
		{"GET", "/v1/load_monitor/workers/", 404, `{"code":5`, ""},
		{"PUT", "/v1/load_monitor/workers", 405, `{"code":12`, "GET, HEAD, POST"},
		{"GET", "/v1/load_monitor/workers/w1", 405, `{"code":12`, "DELETE"},
		{"HEAD", "/v1/load_monitor/workers", 200, "", ""},
		{"OPTIONS", "/v1/load_monitor/workers", 405, `{"code":12`, "GET, HEAD, POST"},
		{"GET", "/v1/load_monitor/workers/a/b", 404, `{"code":5`, ""},
	}
	for _, c := range cases {
		resp, body := r.do(c.method, c.path, nil)
		if resp.StatusCode != c.status || !strings.HasPrefix(body, c.body) || resp.Header.Get("Allow") != c.allow {
			t.Errorf("%s %s: %s, Allow %q, %.80s", c.method, c.path, resp.Status, resp.Header.Get("Allow"), body)
		}
		if strings.HasPrefix(c.body, "{") {
			var e struct {
				Code    int
				Message string
				Details []any
			}
			if err := json.Unmarshal([]byte(body), &e); err != nil || e.Code == 0 || e.Message == "" || e.Details == nil {
				t.Errorf("%s %s: %s is no error body: %v", c.method, c.path, body, err)
			}
		}
		for h := range resp.Header {
			if strings.HasPrefix(h, "Access-Control-") {
				t.Errorf("%s %s: header %s", c.method, c.path, h)
			}
		}
	}
}

func TestHTTP_WithoutRESTItsPathsAreUnknown(t *testing.T) {
	r := start(t, Options{})
	if resp, _ := r.do("GET", "/v1/load_monitor/snapshot", nil); resp.StatusCode != http.StatusNotFound {
		t.Error(resp.Status)
	}
}

// Case M5 over HTTP: alive at once, ready only after the first discovery pass, whatever it found.
func TestReadyz_FollowsTheFirstDiscoveryPass(t *testing.T) {
	for _, after := range []load.FleetState{load.FleetReady, load.FleetNoWorkers} {
		snap := newFakeSnapshots(load.FleetWarmingUp)
		r := start(t, Options{Snapshots: snap})
		if resp, _ := r.do("GET", "/healthz", nil); resp.StatusCode != 200 {
			t.Errorf("healthz while warming up: %s", resp.Status)
		}
		resp, body := r.do("GET", "/readyz", nil)
		if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "warming_up") {
			t.Errorf("readyz while warming up: %s %s", resp.Status, body)
		}
		_, changed := r.ready.phase()
		snap.publish(load.FleetWarmingUp) // a publication that changes nothing here
		snap.publish(after)
		next(t, changed, "readiness")
		if resp, body := r.do("GET", "/readyz", nil); resp.StatusCode != 200 {
			t.Errorf("readyz with %v: %s %s", after, resp.Status, body)
		}
	}
}
