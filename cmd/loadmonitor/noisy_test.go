//go:build cases

package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/loadmonitor/loadmonitor/client"
	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// Case H4: one source sends 20,000 reports a second on 50 streams of one connection. 50 workers that report once a second
// stay younger than 1.5 s, versions stay within the publish interval, and the memory comes back.
func TestHeavy_OneNoisySource(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	const normal, noisy, perStream, length = 50, 50, 400, 30 * time.Second
	_, urls := simulate(t, normal, 1, portRange(t, normal), "1")
	var list strings.Builder
	for _, url := range urls {
		fmt.Fprintf(&list, "- %s\n", url)
	}
	loud := freePorts(t, noisy) // nobody listens there: these reports come unasked
	for _, addr := range loud {
		fmt.Fprintf(&list, "- {url: %q, role: plain, transport: push}\n", "http://"+addr)
	}
	const publishInterval = 10 * time.Millisecond
	// A long lease, because each renewal moves an engine's next report to one interval from then.
	m, heap := serveWithHeap(t, "--publish-interval", publishInterval.String(), "--lease", "10m", "--workers-file", write(t, "workers", list.String()))
	m.until(ctx, "not all fresh", func(s snapshotJSON) bool { return s.Summary.Fresh == normal })
	router, err := client.Dial(m.grpc, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	ids := make([]string, normal)
	for i, url := range urls {
		ids[i] = strings.TrimPrefix(url, "http://")
	}
	// look returns the greatest age of a normal worker.
	look := func(v *client.View) (oldest time.Duration) {
		now := time.Now()
		for _, id := range ids {
			w, ok := v.Worker(id)
			age, known := w.Age(now)
			if !ok || !known || w.Freshness != load.Fresh {
				t.Fatalf("worker %s is %v: %s", id, w.Freshness, w.Reason)
			}
			oldest = max(oldest, age)
		}
		return oldest
	}
	for router.View().Len() < normal+noisy {
		m.pause(ctx, "the router has no picture")
	}
	time.Sleep(5 * time.Second)
	before := usageOf(t, m.cmd.Process.Pid)
	goroutines, used := m.metric(ctx, "go_goroutines"), heap(ctx)
	quiet := look(router.View())

	cc := dial(t, m.grpc)
	var sent atomic.Int64
	var sending sync.WaitGroup
	making, stop := context.WithTimeout(ctx, length)
	defer stop()
	for i, addr := range loud {
		stream, err := modelgatewaypb.NewLoadMonitorServiceClient(cc).Report(ctx)
		if err != nil {
			t.Fatal(err)
		}
		sending.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			began, seq := time.Now(), uint64(0)
			for {
				select {
				case <-making.Done():
					return
				case <-tick.C:
				}
				for due := uint64(time.Since(began).Seconds() * perStream); seq < due; {
					seq++
					if err := stream.Send(noise(addr, fmt.Sprint("loud", i), seq)); err != nil {
						t.Errorf("%s: %v", addr, stream.RecvMsg(new(emptypb.Empty)))
						return
					}
					sent.Add(1)
				}
			}
		})
	}
	begun, first := time.Now(), router.View().Version
	oldest, most := time.Duration(0), int64(0)
	for n := 0; making.Err() == nil; n++ {
		time.Sleep(20 * time.Millisecond)
		oldest = max(oldest, look(router.View()))
		if n%50 == 0 {
			most = max(most, usageOf(t, m.cmd.Process.Pid).rss)
		}
	}
	took := time.Since(begun)
	versions := router.View().Version - first
	sending.Wait()
	during := usageOf(t, m.cmd.Process.Pid)
	t.Logf("%d reports/s, %d versions/s, oldest %v (quiet %v), %.0f %% of a core, %d MiB before, %d MiB at most",
		int(float64(sent.Load())/took.Seconds()), int(float64(versions)/took.Seconds()), oldest.Round(time.Millisecond),
		quiet.Round(time.Millisecond), 100*(during.cpu-before.cpu).Seconds()/during.at.Sub(before.at).Seconds(), before.rss>>20, most>>20)
	if oldest >= 1500*time.Millisecond {
		t.Errorf("a normal worker got %v old", oldest)
	}
	if most := uint64(took/publishInterval) + 1; versions > most {
		t.Errorf("%d versions in %v, want at most %d", versions, took, most)
	}
	if grown := most - before.rss; grown > 64<<20 {
		t.Errorf("grown by %d MiB", grown>>20)
	}
	_ = cc.Close()
	for m.metric(ctx, "go_goroutines") > goroutines+10 || heap(ctx) > used+8<<20 {
		m.pause(ctx, "goroutines or memory of the noisy source are left")
	}
}

// noise is a report whose values differ from those before.
func noise(addr, source string, seq uint64) *modelgatewaypb.LoadReport {
	now := time.Now().UnixMilli()
	return &modelgatewaypb.LoadReport{
		SourceInstanceId: source, SequenceId: seq, ReportTimeUnixMs: now, Status: modelgatewaypb.ReportStatus_REPORT_STATUS_HEALTHY,
		Worker: &modelgatewaypb.Worker{WorkerAddr: "http://" + addr, WorkerType: modelgatewaypb.WorkerType_WORKER_TYPE_REGULAR},
		Ranks: []*modelgatewaypb.RankLoad{{
			SnapshotTimeUnixMs: now, NumRunningReqs: int64(seq % 64), NumUsedTokens: 100, NumTotalTokens: 100, MaxTotalNumTokens: 1000,
			MaxRunningRequests: 64,
		}},
	}
}
