//go:build cases

package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Case F3: the whole binary with 256 open files and 60 workers of 8 ranks over ZMQ. It stays up and accepts, some ranks are
// fed, and the others say why not.
func TestHeavy_FewFiles(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	const workers, ranks, files = 60, 8, 256
	p := start(t, "simulate", "--workers", strconv.Itoa(workers), "--ranks", strconv.Itoa(ranks), "--transport", "zmq")
	var list []string
	for range workers {
		list = append(list, p.line())
	}
	addrs := freePorts(t, 2)
	m := &monitorProcess{grpc: addrs[0], http: addrs[1], process: launch(t, exec.Command("sh", "-c",
		`ulimit -n `+strconv.Itoa(files)+`; exec "$0" "$@"`, os.Args[0], "serve", "--grpc-listen", addrs[0], "--http-listen", addrs[1],
		"--workers-file", write(t, "workers", strings.Join(list, "\n")+"\n")))}
	var fresh, starved int
	for settled := 0; settled < 10; { // ten seconds in a row
		_, body := m.get(ctx, "/v1/load_monitor/snapshot")
		var s struct {
			Workers []struct {
				Ranks []struct {
					Freshness string
					Reason    *string
				}
			}
		}
		if err := json.Unmarshal(body, &s); err != nil {
			t.Fatal(err)
		}
		fresh, starved = 0, 0
		for _, w := range s.Workers {
			for _, r := range w.Ranks {
				if r.Freshness == "fresh" {
					fresh++
				} else if r.Reason != nil && strings.Contains(*r.Reason, "too many open files") {
					starved++
				}
			}
		}
		if fresh+starved == workers*ranks && fresh > 0 {
			settled++
		} else {
			settled = 0
		}
		select {
		case <-m.exited:
			t.Fatalf("ended: %v\n%s", m.err, m.stderr)
		case <-ctx.Done():
			t.Fatalf("%d ranks are fresh and %d say that files are short, of %d", fresh, starved, workers*ranks)
		case <-time.After(time.Second):
		}
	}
	t.Logf("%d ranks are fed with %d open files, %.0f of them in use", fresh, files, m.metric(ctx, "process_open_fds"))
	if status, _ := m.get(ctx, "/healthz"); status != http.StatusOK {
		t.Errorf("/healthz answers %d", status)
	}
	for range 20 { // each over a connection of its own
		watchPicture(ctx, t, m.grpc)
	}
}
