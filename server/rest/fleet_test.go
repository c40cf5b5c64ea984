package rest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// captured is the moment of every snapshot made here: 100 s after the epoch began.
var captured = time.Date(2026, 3, 1, 12, 30, 45, 678_900_000, time.UTC)

const capturedInstant load.Instant = 100_000_000

// ago returns the instant d before the capture.
func ago(d time.Duration) load.Instant { return capturedInstant - load.Instant(d.Microseconds()) }

// fleet is a Source whose publications are made by hand.
type fleet struct {
	current atomic.Pointer[load.Publication]
	next    chan struct{}
	now     load.Instant
}

func newFleet(entries ...*load.Entry) *fleet {
	f := &fleet{now: capturedInstant + 250_999}
	f.put(snapshot(1, entries...), 0)
	return f
}

func (f *fleet) Current() *load.Publication { return f.current.Load() }
func (f *fleet) Now() load.Instant          { return f.now }

func (f *fleet) put(s *load.Snapshot, beat uint64) {
	superseded := f.next
	f.next = make(chan struct{})
	f.current.Store(&load.Publication{Snapshot: s, Beat: beat, Next: f.next})
	if superseded != nil {
		close(superseded)
	}
}

// publish makes the next version.
func (f *fleet) publish(entries ...*load.Entry) {
	pub := f.Current()
	f.put(snapshot(pub.Snapshot.Version+1, entries...), pub.Beat)
}

// beat makes a heartbeat.
func (f *fleet) beat() {
	pub := f.Current()
	f.put(pub.Snapshot, pub.Beat+1)
}

// snapshot returns a version of the fleet; entries must be sorted by id.
func snapshot(version uint64, entries ...*load.Entry) *load.Snapshot {
	s := &load.Snapshot{
		Epoch: "e1", Version: version, CapturedAt: captured, Captured: capturedInstant,
		State: load.FleetNoWorkers, Workers: load.NewTable(entries),
	}
	for _, e := range entries {
		s.State = load.FleetReady
		s.Summary.Add(e.Freshness, 1)
	}
	return s
}

// rank returns a fresh rank with every signal told; its values differ from each other and between ranks.
func rank(dp int32, received time.Duration) load.Rank {
	r := load.Rank{Freshness: load.Fresh, Received: ago(received), SampleAgeMs: 12}
	r.Load.DPRank = dp
	r.Load.SnapshotTimeUnixMs = 1_772_368_245_000 + int64(dp)
	for s := range load.NumIntSignals {
		r.Load.SetInt(s, int64(dp)*100+int64(s)+1)
	}
	for s := range load.NumFloatSignals {
		r.Load.SetFloat(s, float64(dp)+float64(s)/8)
	}
	return r
}

// known returns a fresh worker of which everything is told, with ranks 0..n-1.
func known(id string, n int) *load.Entry {
	st := &load.WorkerStatus{
		Worker: &load.Worker{
			ID: id, URL: "http://" + id, Origin: id, Role: load.RoleDecode, Models: []string{"m1", "m2"}, Zone: "z1",
			ExpectedRanks: n, Transport: load.TransportPush, TransportReason: "push: the engine advertises no load port",
		},
		Handle: 1, Freshness: load.Fresh, Reason: "last report refused: dp_rank appears twice",
		Anomalies:      load.OverCapacity | load.SourceConflict,
		SourceInstance: "src-a", Sequence: 40, Restarts: 2, LastError: "scheduler \"slow\"\n", Window: 3 * time.Second,
		ChangedVersion: 1, DescribedVersion: 1,
	}
	for i := range n {
		st.Ranks = append(st.Ranks, rank(int32(i), time.Duration(100+10*i)*time.Millisecond))
	}
	st.Aggregate.RankCount = uint32(n)
	for f := range load.NumIntFigures {
		st.Aggregate.SetInt(f, 1000+int64(f))
	}
	for f := range load.NumFloatFigures {
		st.Aggregate.SetFloat(f, 0.5+float64(f))
	}
	return &load.Entry{WorkerStatus: st, NewestSequence: 41, ReportTimeUnixMs: 1_772_368_245_500}
}

// silent returns a worker that registration knows and that never reported: n missing ranks (case C5).
func silent(id string, n int) *load.Entry {
	st := &load.WorkerStatus{
		Worker:    &load.Worker{ID: id, URL: "http://" + id, Origin: id, Role: load.RoleRegular, Transport: load.TransportZMQ, ExpectedRanks: n},
		Handle:    2,
		Freshness: load.Missing, Reason: "nothing was reported yet", Window: 3 * time.Second, ChangedVersion: 1, DescribedVersion: 1,
	}
	for i := range n {
		r := load.Rank{Freshness: load.Missing, SampleAgeMs: -1}
		r.Load.DPRank = int32(i)
		st.Ranks, st.RankReasons = append(st.Ranks, r), append(st.RankReasons, "never reported")
	}
	return &load.Entry{WorkerStatus: st}
}

func newHandler(t testing.TB, f *fleet, change ...func(*Options)) *Handler {
	t.Helper()
	o := Options{Source: f}
	for _, c := range change {
		c(&o)
	}
	h, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// get asks the handler without a network. Headers come as name and value in turn.
func get(h http.Handler, method, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// pipes is an HTTP server and its client over connections in memory, which run inside a synctest bubble. Such a
// connection buffers nothing: what the client does not read blocks the server.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	server *http.Server
}

func newPipes(t *testing.T, h http.Handler) *pipes {
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{}), server: &http.Server{Handler: h}}
	go p.server.Serve(p)
	t.Cleanup(func() { p.server.Close() })
	return p
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// dial opens a connection to the server.
func (p *pipes) dial(t *testing.T) net.Conn {
	t.Helper()
	client, server := net.Pipe()
	select {
	case p.conns <- server:
	case <-p.closed:
		t.Fatal("server is closed")
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// client returns an HTTP client with a connection of its own for each request.
func (p *pipes) client(t *testing.T) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives:  true,
		DisableCompression: true,
		DialContext:        func(context.Context, string, string) (net.Conn, error) { return p.dial(t), nil },
	}}
}

func workerID(i int) string { return fmt.Sprintf("10.9.%03d.%03d:30000", i/200, i%200) }
