//go:build cases

package main

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/internal/proxy"
)

// Case I3: of 10,000 watchers on a quiet fleet a third is cancelled, a third vanishes without FIN or RST, and a third runs
// into its deadline. Nothing of them is left, goroutines and memory.
func TestHeavy_TenThousandWatchersVanish(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	const conns, each = 20, 500
	m, heap := serveWithHeap(t, "--max-watchers", "16384")
	between := proxy.Start(t, m.grpc)
	m.until(ctx, "not ready", func(s snapshotJSON) bool { return s.Summary.State == "no_workers" })
	goroutines, used := m.metric(ctx, "go_goroutines"), heap(ctx)

	cancelled, cancelThem := context.WithCancel(ctx)
	defer cancelThem()
	short, endShort := context.WithTimeout(ctx, 30*time.Second)
	defer endShort()
	for i := range conns {
		addr, life := m.grpc, cancelled
		switch i % 3 {
		case 1:
			addr, life = between.Addr(), ctx
		case 2:
			life = short
		}
		c := loadmonitorpb.NewSnapshotServiceClient(dial(t, addr))
		for range each {
			stream, err := c.Watch(life, &loadmonitorpb.WatchRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
	}
	full := heap(ctx)
	if n := m.metric(ctx, "loadmonitor_watchers"); n != conns*each {
		t.Fatalf("%v watchers", n)
	}
	begun := time.Now()
	cancelThem()
	between.Freeze()
	<-short.Done()
	for m.metric(ctx, "loadmonitor_watchers") > 0 || m.metric(ctx, "go_goroutines") > goroutines+100 {
		if time.Since(begun) > 90*time.Second {
			t.Fatalf("%v watchers, %v goroutines of %v", m.metric(ctx, "loadmonitor_watchers"), m.metric(ctx, "go_goroutines"), goroutines)
		}
		time.Sleep(time.Second)
	}
	after := heap(ctx)
	t.Logf("all gone after %v; heap of %d KiB before, %d KiB with all of them, %d KiB after", time.Since(begun).Round(time.Second),
		used>>10, full>>10, after>>10)
	if after-used > (full-used)/3 { // the runtime keeps what describes a goroutine for the next one
		t.Errorf("%d KiB are left", (after-used)>>10)
	}
}

// serveWithHeap starts a monitor and returns what reads how many bytes its heap holds after a collection.
func serveWithHeap(t *testing.T, args ...string) (*monitorProcess, func(context.Context) int64) {
	t.Helper()
	profiles := freePorts(t, 1)[0]
	m := serve(t, append(args, "--pprof-listen", profiles)...)
	return m, func(ctx context.Context) int64 {
		t.Helper()
		for range 2 { // pools let go of what they hold at the second one
			resp, err := http.Get("http://" + profiles + "/debug/pprof/heap?gc=1")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		return int64(m.metric(ctx, "go_memstats_heap_alloc_bytes"))
	}
}
