package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

func startFleet(t *testing.T, opts Options) *Fleet {
	t.Helper()
	f, err := NewFleet(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	select {
	case <-f.Ready():
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return f
}

func get(t *testing.T, url string, into any) int {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if into != nil {
		if err := json.NewDecoder(res.Body).Decode(into); err != nil {
			t.Fatalf("%s: %v", url, err)
		}
	}
	return res.StatusCode
}

func TestFleet_TwentyEnginesOfFourRanksReportOverRealSockets(t *testing.T) {
	t.Parallel()
	const workers, ranks = 20, 4
	m := startMonitor(t)
	f := startFleet(t, Options{Workers: workers, Ranks: ranks, Seed: 1, Roles: []load.Role{load.RolePrefill, load.RoleDecode}, Zones: []string{"z1", "z2"}, Model: "m1"})
	urls := f.URLs()
	number := map[string]int{}
	for i, url := range urls {
		number[url] = i
		m.register(t, url)
	}
	if len(number) != workers {
		t.Fatalf("%d different URLs, want %d", len(number), workers)
	}
	sources := map[string]string{}
	sequence := map[string]uint64{}
	count := map[string]int{}
	enough := 0
	m.await(t, "three of every worker", func(r *modelgatewaypb.LoadReport) bool {
		i, known := number[r.Worker.WorkerAddr]
		if !known {
			t.Fatalf("report of %s", r.Worker.WorkerAddr)
		}
		wantType, wantZone := modelgatewaypb.WorkerType_WORKER_TYPE_PREFILL, "z1"
		if i%2 == 1 {
			wantType, wantZone = modelgatewaypb.WorkerType_WORKER_TYPE_DECODE, "z2"
		}
		if r.Worker.WorkerType != wantType || r.Worker.GetZone() != wantZone || r.Worker.GetModel() != "m1" {
			t.Errorf("worker %d says %v", i, r.Worker)
		}
		if r.Status != modelgatewaypb.ReportStatus_REPORT_STATUS_HEALTHY || len(r.Ranks) != ranks {
			t.Errorf("worker %d: %v with %d ranks", i, r.Status, len(r.Ranks))
		}
		for n, rank := range r.Ranks {
			if rank.DpRank != int32(n) || rank.MaxTotalNumTokens == 0 || (rank.Utilization == -1) != (i%2 == 0) {
				t.Errorf("worker %d rank %d: %v", i, n, rank)
			}
		}
		if s := sources[r.Worker.WorkerAddr]; s != "" && s != r.SourceInstanceId {
			t.Errorf("worker %d changed its source instance", i)
		}
		if r.SequenceId <= sequence[r.Worker.WorkerAddr] {
			t.Errorf("worker %d: sequence %d after %d", i, r.SequenceId, sequence[r.Worker.WorkerAddr])
		}
		sources[r.Worker.WorkerAddr], sequence[r.Worker.WorkerAddr] = r.SourceInstanceId, r.SequenceId
		if count[r.Worker.WorkerAddr]++; count[r.Worker.WorkerAddr] == 3 {
			enough++
		}
		return enough == workers
	})
	distinct := map[string]bool{}
	for _, s := range sources {
		distinct[s] = true
	}
	if len(distinct) != workers {
		t.Errorf("%d source instances, want one for each of %d engines", len(distinct), workers)
	}
}

func TestFleet_CrashResetsEverythingAndRestartIsANewSource(t *testing.T) {
	t.Parallel()
	m := startMonitor(t)
	f := startFleet(t, Options{Workers: 2, Ranks: 1})
	url := f.URLs()[1]
	m.register(t, url)
	first := m.await(t, "the first life", func(r *modelgatewaypb.LoadReport) bool { return r.SequenceId > 2 })
	if err := f.Do(t.Context(), Command{Action: Crash, Worker: "1"}); err != nil {
		t.Fatal(err)
	}
	end := <-m.closed
	if end.worker != url || end.err == io.EOF {
		t.Errorf("the stream of %s ended with %v", end.worker, end.err)
	}
	if _, err := http.Get(url + "/health"); err == nil {
		t.Error("a crashed engine answers")
	}
	if err := f.Do(t.Context(), Command{Action: Crash, Worker: "1"}); !errors.Is(err, ErrConflict) {
		t.Errorf("a second crash: %v", err)
	}
	if s := f.State()[1]; s.Condition != Crashed || s.Reporter != nil || s.SourceInstance != "" {
		t.Errorf("state %+v", s)
	}
	if err := f.Do(t.Context(), Command{Action: Restart, Worker: url}); err != nil {
		t.Fatal(err)
	}
	m.register(t, url)
	second := m.await(t, "the second life", func(r *modelgatewaypb.LoadReport) bool { return r.SourceInstanceId != first.SourceInstanceId })
	if second.SequenceId != 1 || second.Worker.WorkerAddr != url {
		t.Errorf("second life begins with sequence %d at %s", second.SequenceId, second.Worker.WorkerAddr)
	}
	if s := f.State()[1]; s.Condition != Running || s.Lives != 2 || s.SourceInstance != second.SourceInstanceId {
		t.Errorf("state %+v", s)
	}
	// A restart of a running engine is a crash and a start.
	if err := f.Do(t.Context(), Command{Action: Restart, Worker: "1"}); err != nil {
		t.Fatal(err)
	}
	if end := <-m.closed; end.worker != url {
		t.Errorf("the stream of %s ended", end.worker)
	}
	if s := f.State()[1]; s.Lives != 3 {
		t.Errorf("state %+v", s)
	}
}

// A crash says nothing: an open connection is reset, not closed.
func TestFleet_CrashResetsIdleConnections(t *testing.T) {
	t.Parallel()
	f := startFleet(t, Options{Workers: 1})
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.URLs()[0], "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	reader := bufio.NewReader(conn)
	fmt.Fprintf(conn, "GET /health HTTP/1.1\r\nHost: engine\r\n\r\n")
	res, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if err := f.Do(t.Context(), Command{Action: Crash, Worker: "0"}); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read after the crash: %v, want a reset", err)
	}
}

func TestResumeAt_SkipsMissedCycles(t *testing.T) {
	for _, tc := range []struct{ done, due, slots, want int64 }{
		{0, 0, 20, 0},
		{10, 11, 20, 10},
		{10, 30, 20, 10},    // a whole cycle behind: each engine once
		{10, 1000, 20, 980}, // asleep: each engine once
	} {
		if got := resumeAt(tc.done, tc.due, tc.slots); got != tc.want {
			t.Errorf("resumeAt(%d, %d, %d) = %d, want %d", tc.done, tc.due, tc.slots, got, tc.want)
		}
	}
}

func TestFleet_HungEngineAndSilentRankTurnStaleWhileHTTPAnswers(t *testing.T) {
	t.Parallel()
	m := startMonitor(t)
	f := startFleet(t, Options{Workers: 2, Ranks: 2})
	urls := f.URLs()
	rank := 1
	for _, c := range []Command{{Action: Hang, Worker: "0"}, {Action: Silence, Worker: "1", Rank: &rank}} {
		if err := f.Do(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	for _, url := range urls {
		m.register(t, url)
	}
	stale := map[string]*modelgatewaypb.LoadReport{}
	m.await(t, "both stale", func(r *modelgatewaypb.LoadReport) bool {
		if r.Status == modelgatewaypb.ReportStatus_REPORT_STATUS_STALE {
			stale[r.Worker.WorkerAddr] = r
		}
		return len(stale) == 2
	})
	age := func(url string, rank int) time.Duration {
		r := stale[url]
		return time.Duration(r.ReportTimeUnixMs-r.Ranks[rank].SnapshotTimeUnixMs) * time.Millisecond
	}
	for _, tc := range []struct {
		worker, rank int
		old          bool
	}{{0, 0, true}, {0, 1, true}, {1, 0, false}, {1, 1, true}} {
		if a := age(urls[tc.worker], tc.rank); (a > 3*time.Second) != tc.old {
			t.Errorf("worker %d rank %d: sample of age %v", tc.worker, tc.rank, a)
		}
	}
	var page loadsPage
	if code := get(t, urls[0]+"/v1/loads?include=core", &page); code != http.StatusOK || len(page.Loads) != 2 || page.Timestamp-page.Loads[0].Timestamp < 3 {
		t.Errorf("loads of the hung engine: %d %+v", code, page)
	}
	if code := get(t, urls[0]+"/health", nil); code != http.StatusOK {
		t.Errorf("health of the hung engine: %d", code)
	}
	for _, worker := range []string{"0", "1"} {
		if err := f.Do(t.Context(), Command{Action: Resume, Worker: worker}); err != nil {
			t.Fatal(err)
		}
	}
	healthy := map[string]bool{}
	m.await(t, "both healthy again", func(r *modelgatewaypb.LoadReport) bool {
		if r.Status == modelgatewaypb.ReportStatus_REPORT_STATUS_HEALTHY {
			healthy[r.Worker.WorkerAddr] = true
		}
		return len(healthy) == 2
	})
}

func TestFleet_FixedPortsFollowTheWorkersNumber(t *testing.T) {
	t.Parallel()
	// Below the range from which systems take ports for outgoing connections two neighbours are mostly free.
	for range 50 {
		base := 15_000 + rand.IntN(15_000)
		f, err := NewFleet(Options{Workers: 2, BasePort: base})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		select {
		case <-f.Ready():
			for i, url := range f.URLs() {
				if want := "http://127.0.0.1:" + strconv.Itoa(base+i); url != want {
					t.Errorf("worker %d at %s, want %s", i, url, want)
				}
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			return
		case err := <-done:
			t.Logf("ports %d and %d: %v", base, base+1, err)
		}
		cancel()
	}
	t.Error("found no two free neighbouring ports")
}

func TestFleet_TakenPortIsNamedAndNothingIsLeftOpen(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	f, err := NewFleet(Options{Workers: 1, BasePort: port})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Run(t.Context()); err == nil || !strings.Contains(err.Error(), strconv.Itoa(port)) || !strings.Contains(err.Error(), "worker 0") {
		t.Errorf("error %v, want one that names worker and port", err)
	}
	if err := f.Run(t.Context()); err == nil {
		t.Error("a second Run is accepted")
	}
	g, err := NewFleet(Options{Workers: 2, ControlAddr: l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "control API") {
		t.Errorf("error %v, want one that names the control API", err)
	}
	for _, url := range g.URLs() {
		if c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://")); err == nil {
			c.Close()
			t.Errorf("%s is still open", url)
		}
	}
}
