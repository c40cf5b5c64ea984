package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// Rule ID6: each engine's load takes the way that the engine offers, the snapshot says why, and an engine that comes back
// with another offer is followed.
func TestServe_ChoosesATransportForEachEngine(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ports := portRange(t, 20)
	fleet := func(transport string) (*process, []string) {
		p := start(t, "simulate", "--workers", "3", "--ranks", "2", "--base-port", fmt.Sprint(ports), "--transport", transport)
		var args []string
		for range 3 {
			args = append(args, "--worker", p.line())
		}
		return p, args
	}
	chosen := func(push, zmq int) func(snapshotJSON) bool {
		return func(s snapshotJSON) bool {
			pushing, publishing := 0, 0
			for _, w := range s.Workers {
				switch why := text(w.Transport); {
				case why == "push: the engine advertises no load port":
					pushing++
				case strings.HasPrefix(why, "zmq: the engine advertises load port "):
					publishing++
				}
			}
			return pushing == push && publishing == zmq && s.Summary.Fresh == 3
		}
	}
	mixed, workers := fleet("mixed")
	m := serve(t, append(append(workers, "--probe-interval", "500ms"), fast...)...)
	m.until(ctx, "one pushes and two publish", chosen(1, 2))

	out, stderr, code := invoke(t, nil, "", "snapshot", "--http", m.http)
	if code != 0 || !strings.Contains(out, "TRANSPORT") || !strings.Contains(out, "  zmq: the engine advertises load port ") ||
		!strings.Contains(out, "  push: the engine advertises no load port") {
		t.Errorf("exit code %d %s, want the transports and why:\n%s", code, stderr, out)
	}

	_ = mixed.cmd.Process.Kill()
	<-mixed.exited
	fleet("push")
	m.until(ctx, "all push", chosen(3, 0))
}
