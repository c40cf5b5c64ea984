package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Rule SNAP1: ages are as of the capture, and readers add what has passed since, or a dead fleet would look alive.
func TestSnapshot_AgesGoOnAfterTheCapture(t *testing.T) {
	age := ""
	monitor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if age != "" {
			w.Header().Set("Snapshot-Age-Ms", age)
		}
		_, _ = w.Write([]byte(`{"epoch": "e", "version": 7, "captured_at": "2026-03-01T12:30:45.678Z",
			"summary": {"state": "ready", "workers": 2, "stale": 1, "missing": 1}, "workers": [
			{"worker_id": "dead:1", "mode": "plain", "freshness": "stale", "received_age_ms": 3000, "aggregate": {"rank_count": 1}},
			{"worker_id": "never:1", "mode": "plain", "freshness": "missing", "received_age_ms": null, "aggregate": {"rank_count": 0}}]}`))
	}))
	defer monitor.Close()

	for _, c := range []struct {
		age              string
		inHeader, ofDead string
	}{
		{"0", "version 7 of 2026-03-01T12:30:45.678Z, 0.0s ago, ready: 0 of 2", "3.0s"},
		{"2500", "2.5s ago", "5.5s"},
		{"57000", "57s ago", "60s"},
	} {
		age = c.age
		out, stderr, code := invoke(t, nil, "", "snapshot", "--http", monitor.URL)
		lines := strings.Split(out, "\n")
		if code != 0 || len(lines) < 4 {
			t.Fatalf("exit code %d: %s%s", code, out, stderr)
		}
		if !strings.Contains(lines[0], c.inHeader) {
			t.Errorf("age %s: first line is %q, want %q", c.age, lines[0], c.inHeader)
		}
		if got := strings.Fields(lines[2])[4]; got != c.ofDead {
			t.Errorf("age %s: the dead worker is %s old, want %s:\n%s", c.age, got, c.ofDead, out)
		}
		if got := strings.Fields(lines[3])[4]; got != unknown {
			t.Errorf("age %s: a worker that never reported is %s old", c.age, got)
		}
	}

	age = ""
	if _, stderr, code := invoke(t, nil, "", "snapshot", "--http", monitor.URL); code != 1 || !strings.Contains(stderr, "Snapshot-Age-Ms") {
		t.Errorf("without the age: exit code %d, %s", code, stderr)
	}
}
