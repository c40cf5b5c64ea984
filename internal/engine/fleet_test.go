package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// monitor speaks the push contract on a real socket and passes on what it hears.
type monitor struct {
	modelgatewaypb.UnimplementedLoadMonitorServiceServer
	addr   *net.TCPAddr
	heard  chan *modelgatewaypb.LoadReport
	closed chan ending
	quit   chan struct{}
}

// ending is how the stream of a worker ended.
type ending struct {
	worker string
	err    error
}

func (m *monitor) Report(stream grpc.ClientStreamingServer[modelgatewaypb.LoadReport, emptypb.Empty]) error {
	worker := ""
	for {
		report, err := stream.Recv()
		if err != nil {
			select {
			case m.closed <- ending{worker, err}:
			case <-m.quit:
			}
			return err
		}
		worker = report.Worker.WorkerAddr
		select {
		case m.heard <- report:
		case <-m.quit:
			return status.Error(codes.Unavailable, "the test is over")
		}
	}
}

func startMonitor(t *testing.T) *monitor {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &monitor{
		addr:   l.Addr().(*net.TCPAddr),
		heard:  make(chan *modelgatewaypb.LoadReport),
		closed: make(chan ending, 64),
		quit:   make(chan struct{}),
	}
	server := grpc.NewServer()
	modelgatewaypb.RegisterLoadMonitorServiceServer(server, m)
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	t.Cleanup(func() { close(m.quit); server.Stop(); serving.Wait() })
	return m
}

// await returns the first report that the condition accepts.
func (m *monitor) await(t *testing.T, what string, accept func(*modelgatewaypb.LoadReport) bool) *modelgatewaypb.LoadReport {
	t.Helper()
	tooLong := time.After(30 * time.Second)
	for {
		select {
		case r := <-m.heard:
			if accept(r) {
				return r
			}
		case <-tooLong:
			t.Fatalf("no report: %s", what)
		}
	}
}

// register asks an engine for a report each 50 ms.
func (m *monitor) register(t *testing.T, url string) {
	t.Helper()
	body := fmt.Sprintf(`{"ip": %q, "port": %d, "report_interval_ms": 50, "lease_ttl_ms": 60000}`, m.addr.IP, m.addr.Port)
	for { // 503 until the reporter of a new process runs
		res, err := http.Post(url+"/v1/start_reporting", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			return
		}
		if res.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("%s: %d %s", url, res.StatusCode, answer)
		}
	}
}

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

func TestFleet_ServesWhatARealEngineServes(t *testing.T) {
	t.Parallel()
	f := startFleet(t, Options{Workers: 3, Ranks: 2, Model: "m1", Roles: allRoles})
	for i, mode := range []string{"null", "prefill", "decode"} {
		url := f.URLs()[i]
		var info map[string]any
		if code := get(t, url+"/server_info", &info); code != http.StatusOK {
			t.Fatalf("server_info: %d", code)
		}
		for key, want := range map[string]any{"dp_size": 2.0, "served_model_name": "m1", "model_path": "/models/m1", "disaggregation_mode": mode} {
			if info[key] != want {
				t.Errorf("%s is %v, want %v", key, info[key], want)
			}
		}
		for _, key := range []string{"kv_events", "load_reporter_port"} {
			if _, there := info[key]; there {
				t.Errorf("%s is advertised, and nothing listens there", key)
			}
		}
		var page map[string]any
		if code := get(t, url+"/v1/loads?include=core", &page); code != http.StatusOK {
			t.Fatalf("loads: %d", code)
		}
		rows := page["loads"].([]any)
		if len(rows) != 2 {
			t.Fatalf("%d rows", len(rows))
		}
		for n, row := range rows {
			row := row.(map[string]any)
			for _, key := range []string{
				"dp_rank", "timestamp", "num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens", "num_used_tokens", "num_total_tokens",
				"max_total_num_tokens", "max_running_requests", "token_usage", "gen_throughput", "cache_hit_rate", "utilization",
			} {
				if _, there := row[key]; !there {
					t.Errorf("row %d lacks %s", n, key)
				}
			}
			if row["dp_rank"] != float64(n) || (row["utilization"] == -1.0) != (mode == "prefill") {
				t.Errorf("row %d: %v", n, row)
			}
		}
		if code := get(t, url+"/v1/loads?include=lora", nil); code != http.StatusBadRequest {
			t.Errorf("an unknown section: %d", code)
		}
	}
}

func TestFleet_KeysAreAskedFor(t *testing.T) {
	t.Parallel()
	f := startFleet(t, Options{Workers: 1, AdminKey: "sentinel-admin", APIKey: "sentinel-api"})
	for _, tc := range []struct {
		method, path, token string
		want                int
	}{
		{"GET", "/server_info", "", 401},
		{"GET", "/server_info", "sentinel-admin", 401},
		{"GET", "/server_info", "sentinel-api", 200},
		{"GET", "/v1/loads", "", 401},
		{"GET", "/v1/loads", "sentinel-api", 200},
		{"GET", "/health", "", 200},
		{"POST", "/v1/start_reporting", "sentinel-api", 401},
		{"POST", "/v1/start_reporting", "sentinel-admin", 422}, // the body is empty
	} {
		req, _ := http.NewRequest(tc.method, f.URLs()[0]+tc.path, nil)
		if tc.token != "" {
			req.Header.Set("Authorization", "Bearer "+tc.token)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != tc.want || strings.Contains(string(body), "sentinel") {
			t.Errorf("%s %s with %q: %d %s, want %d", tc.method, tc.path, tc.token, res.StatusCode, body, tc.want)
		}
	}
}

func TestFleet_StartingEngineSaysSo(t *testing.T) {
	t.Parallel()
	f := startFleet(t, Options{Workers: 1, StartingFor: time.Hour})
	url := f.URLs()[0]
	if code := get(t, url+"/health", nil); code != http.StatusServiceUnavailable {
		t.Errorf("health %d, want 503", code)
	}
	var page loadsPage
	if get(t, url+"/v1/loads", &page); len(page.Loads) != DefaultRanks || page.Loads[0].MaxTotalNumTokens != 0 {
		t.Errorf("loads %+v, want rows without capacity", page)
	}
	if s := f.State()[0]; s.Condition != Starting {
		t.Errorf("state %+v", s)
	}
}

func TestFleet_FixedPortsFollowTheWorkersNumber(t *testing.T) {
	t.Parallel()
	// Two neighbouring ports that were free a moment ago; another process may take one, so a few tries.
	for range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		base := l.Addr().(*net.TCPAddr).Port
		l.Close()
		if base == 65535 {
			continue
		}
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
