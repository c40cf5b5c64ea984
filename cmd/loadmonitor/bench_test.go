package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestBench_LosesNothing(t *testing.T) {
	m := serve(t)
	m.get(t.Context(), "/healthz")
	stdout, stderr, code := invoke(t, nil, "", "bench", "--grpc", m.grpc, "--http", m.http, "-o", "json",
		"--workers", "20", "--ranks", "2", "--rate", "20", "--connections", "3", "--watchers", "3", "--decoding-watchers", "2", "--duration", "1500ms")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var r benchResult
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	if r.Sent == 0 || r.Accepted == nil || *r.Accepted != r.Sent || *r.Refused != 0 {
		t.Errorf("sent %d, accepted and refused %v %v: want all accepted", r.Sent, r.Accepted, r.Refused)
	}
	if r.Delay.Count == 0 || r.Delay.P50 > r.Delay.P99 || r.Delay.P99 > r.Delay.Max {
		t.Errorf("delays %+v: want some, in order", r.Delay)
	}
	if r.BytesPerWatcher == 0 || r.FramesPerWatcher == 0 {
		t.Errorf("a watcher received %v B/s in %v frames/s", r.BytesPerWatcher, r.FramesPerWatcher)
	}
	if !strings.Contains(stderr, "reports/s") {
		t.Errorf("no progress was shown: %s", stderr)
	}
	s := m.until(t.Context(), "the workers are removed", func(s snapshotJSON) bool { return s.Summary.Workers == 0 })
	if s.Summary.State != "no_workers" {
		t.Errorf("the fleet is %s", s.Summary.State)
	}
}

func TestBench_FailsWhenSomethingIsLost(t *testing.T) {
	m := serve(t)
	m.get(t.Context(), "/healthz")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan struct{})
	var stderr string
	var code int
	go func() {
		defer close(ended)
		_, stderr, code = invoke(t, nil, "", "bench", "--grpc", m.grpc, "--http", m.http,
			"--workers", "5", "--rate", "20", "--watchers", "1", "--duration", "2s")
	}()
	s := m.until(ctx, "the workers report", func(s snapshotJSON) bool { return s.Summary.Fresh == 5 })
	// Somebody else removes a worker in the middle.
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, "http://"+m.http+"/v1/load_monitor/workers/"+s.Workers[0].WorkerID, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("remove a worker: %s %s %v", resp.Status, body, err)
	}
	<-ended
	if code == 0 || !strings.Contains(stderr, "1 report streams") || !strings.Contains(stderr, "NotFound") {
		t.Errorf("exit code %d: want an error that names the stream and why it ended\n%s", code, stderr)
	}
}

func TestBench_RefusesImpossibleLoads(t *testing.T) {
	for flag, value := range map[string]string{
		"workers": "0", "ranks": "-1", "connections": "0", "watchers": "-1", "decoding-watchers": "-2", "rate": "0", "duration": "10ms", "output": "xml",
	} {
		_, stderr, code := invoke(t, nil, "", "bench", "--"+flag, value)
		if code == 0 || !strings.Contains(stderr, flag+" is ") {
			t.Errorf("--%s %s: exit code %d, %q: want an error that names both", flag, value, code, stderr)
		}
	}
}
