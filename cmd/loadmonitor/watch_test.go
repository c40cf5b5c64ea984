package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// next returns the next change of a watch -o json that fits.
func (p *process) next(fits func(change) bool) change {
	p.t.Helper()
	for {
		var c change
		if err := json.Unmarshal([]byte(p.line()), &c); err != nil {
			p.t.Fatal(err)
		}
		if fits(c) {
			return c
		}
	}
}

func TestWatch_SaysAtOnceWhyThereIsNoMonitor(t *testing.T) {
	m := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m.get(ctx, "/healthz")
	for name, c := range map[string]struct{ addr, want string }{
		"nobody listens":    {freePorts(t, 1)[0], "connection refused"},
		"HTTP port instead": {m.http, "HTTP/1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, _, code := invoke(t, nil, "", "watch", "--grpc", c.addr, "--duration", "2s")
			if code != 0 {
				t.Errorf("exit code %d", code)
			}
			for _, want := range []string{"not connected to the monitor yet", c.addr, c.want} {
				if !strings.Contains(out, want) {
					t.Errorf("output lacks %q:\n%s", want, out)
				}
			}
			if n := strings.Count(out, "\n"); n > 2 {
				t.Errorf("%d lines about one cause:\n%s", n, out)
			}
		})
	}
}

// A watch says why its stream ended before the silence is long enough to count, and after that still.
func TestWatch_SaysWhyTheMonitorWent(t *testing.T) {
	m := serve(t)
	watch := start(t, "watch", "--grpc", m.grpc, "-o", "json")
	watch.next(func(c change) bool { return c.Link == "up" })
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c := watch.next(func(c change) bool { return c.Event == "link" })
	if !strings.HasPrefix(c.Link, "interrupted: ") || !strings.Contains(c.Link, "Unavailable") || !strings.Contains(c.Link, m.grpc) {
		t.Errorf("the first word is %q", c.Link)
	}
	c = watch.next(func(c change) bool { return c.Event == "link" && !strings.HasPrefix(c.Link, "interrupted: ") })
	if !strings.Contains(c.Link, "silent for longer than 3s: ") || !strings.Contains(c.Link, m.grpc) {
		t.Errorf("then it says %q", c.Link)
	}
}

func TestWatch_SaysWhenTheFleetChangesState(t *testing.T) {
	m := serve(t, fast...)
	watch := start(t, "watch", "--grpc", m.grpc, "-o", "json")
	fleet := func(state string, complete bool) {
		t.Helper()
		watch.next(func(c change) bool { return c.Event == "fleet" && c.State == state && *c.Complete == complete })
	}
	fleet("no_workers", false)

	_, urls := simulate(t, 1, 1, portRange(t, 1), "1")
	resp, err := http.Post("http://"+m.http+"/v1/load_monitor/workers", "application/json", strings.NewReader(`{"url":"`+urls[0]+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("register: %s", resp.Status)
	}
	fleet("ready", true)

	id := strings.TrimPrefix(urls[0], "http://")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "http://"+m.http+"/v1/load_monitor/workers/"+id, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err = http.DefaultClient.Do(req); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	fleet("no_workers", false)
}
