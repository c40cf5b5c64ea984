package main

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// LIFE5: profiles are for whoever is on the machine.
func TestPprof_ListensOnLoopbackOnly(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "example.org:0", "6060"} {
		if p, err := newProfiler(t.Context(), addr); err == nil {
			p.listener.Close()
			t.Errorf("%s was accepted", addr)
		} else if !strings.Contains(err.Error(), "pprof-listen") || !strings.Contains(err.Error(), addr) {
			t.Errorf("%s: the error does not name key and value: %v", addr, err)
		}
	}
}

func TestPprof_ServesProfilesWhileTheMonitorRuns(t *testing.T) {
	addr := freePorts(t, 1)[0]
	m := serve(t, "--pprof-listen", addr)
	m.get(t.Context(), "/healthz") // the listeners are open
	resp, err := http.Get("http://" + addr + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(body), "aggregator") {
		t.Errorf("the goroutines do not show the aggregator:\n%.400s", body)
	}
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := m.wait(20 * time.Second); code != 0 {
		t.Errorf("exit code %d\n%s", code, m.stderr)
	}
}
