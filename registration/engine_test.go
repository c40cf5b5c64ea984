package registration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

var listenLoopback = netip.MustParseAddrPort("127.0.0.1:50061")

// fakeEngine answers /v1/start_reporting by the engine's rules and remembers what it was asked. It has no /server_info
// unless info is set.
type fakeEngine struct {
	mu     sync.Mutex
	key    string // admin key; empty: none is wanted
	answer func(n int, w http.ResponseWriter)
	posts  []fakePost
	info   http.HandlerFunc
	probes []time.Time
}

type fakePost struct {
	at         time.Time
	host       string
	ip         string
	port       int
	intervalMs int64
	leaseMs    int64
	auth       string
	status     int
}

func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/server_info" {
		e.mu.Lock()
		info := e.info
		e.probes = append(e.probes, time.Now())
		e.mu.Unlock()
		if info == nil {
			info = http.NotFound
		}
		info(w, r)
		return
	}
	p := fakePost{at: time.Now(), host: r.Host, auth: r.Header.Get("Authorization")}
	readable := p.read(r)
	e.mu.Lock()
	key, answer, n := e.key, e.answer, len(e.posts)
	e.posts = append(e.posts, p) // an answer may not return
	e.mu.Unlock()
	rec := &statusWriter{ResponseWriter: w, status: http.StatusOK}
	switch {
	case r.URL.Path != "/v1/start_reporting":
		rec.WriteHeader(http.StatusNotFound)
	case r.Method != http.MethodPost:
		rec.WriteHeader(http.StatusMethodNotAllowed)
	case key != "" && p.auth != "Bearer "+key:
		rec.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(rec, "bad credentials: "+p.auth) // engines may echo; we must not
	case !readable:
		rec.WriteHeader(http.StatusUnprocessableEntity)
	case answer != nil:
		answer(n, rec)
	default:
		_, _ = fmt.Fprintf(rec, `{"status":"ok","lease_ttl_ms":%d,"renew_after_ms":%d}`, p.leaseMs, p.leaseMs/3)
	}
	e.mu.Lock()
	e.posts[n].status = rec.status
	e.mu.Unlock()
}

// read parses the request as strictly as an engine does: the four keys and no other, an IP literal, positive numbers,
// and a Host with its port.
func (p *fakePost) read(r *http.Request) bool {
	var body struct {
		IP       *string `json:"ip"`
		Port     *int    `json:"port"`
		Interval *int64  `json:"report_interval_ms"`
		Lease    *int64  `json:"lease_ttl_ms"`
	}
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if dec.Decode(&body) != nil || body.IP == nil || body.Port == nil || body.Interval == nil || body.Lease == nil {
		return false
	}
	p.ip, p.port, p.intervalMs, p.leaseMs = *body.IP, *body.Port, *body.Interval, *body.Lease
	_, ipErr := netip.ParseAddr(p.ip)
	_, port, hostErr := net.SplitHostPort(p.host)
	_, portErr := strconv.ParseUint(port, 10, 16)
	return ipErr == nil && hostErr == nil && portErr == nil && r.Header.Get("Content-Type") == "application/json" &&
		p.port > 0 && p.port < 65536 && p.intervalMs > 0 && p.leaseMs > 0
}

func (e *fakeEngine) seen() []fakePost {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.posts)
}

// saying is an engine with a text for /server_info.
func saying(info string) *fakeEngine {
	e := &fakeEngine{}
	e.says(info)
	return e
}

func (e *fakeEngine) says(info string) {
	e.informWith(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, info) })
}

func (e *fakeEngine) informWith(info http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.info = info
}

// asked returns when /server_info was asked for.
func (e *fakeEngine) asked() []time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.probes)
}

func (e *fakeEngine) answerWith(answer func(n int, w http.ResponseWriter)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
}

func statusOnly(status int) func(int, http.ResponseWriter) {
	return func(_ int, w http.ResponseWriter) { w.WriteHeader(status) }
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// pipes is a network of engines inside a synctest bubble: connections are net.Pipes, so that time is the bubble's.
type pipes struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener // by host:port
	blackhole map[string]bool          // dialling there never ends by itself
	dials     map[string]int
}

func newPipes() *pipes {
	return &pipes{listeners: map[string]*pipeListener{}, blackhole: map[string]bool{}, dials: map[string]int{}}
}

// use makes a registry reach its engines over n.
func (n *pipes) use(r *Registry) {
	r.engines.dial = n.dial
	r.engines.advertise.route = func(context.Context, string) (local, remote netip.Addr, err error) {
		return netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.1"), nil
	}
}

func (n *pipes) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	n.mu.Lock()
	n.dials[addr]++
	l, hole := n.listeners[addr], n.blackhole[addr]
	n.mu.Unlock()
	if hole {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if l == nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
}

// serve starts an engine at addr; stop kills it with its connections.
func (n *pipes) serve(addr string, h http.Handler) (stop func()) {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	n.mu.Lock()
	n.listeners[addr] = l
	n.mu.Unlock()
	srv := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l)
	}()
	return func() {
		n.mu.Lock()
		if n.listeners[addr] == l {
			delete(n.listeners, addr)
		}
		n.mu.Unlock()
		_ = srv.Close()
		<-done
	}
}

type pipeListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// recorder is a sink and a dialer that keep what registration decides.
type recorder struct {
	mu      sync.Mutex
	sets    [][]load.Worker
	notes   map[string]string
	calls   int // of SetNote
	ranks   map[rankKey]string
	targets [][]RankEndpoint
}

func newSink() *recorder {
	return &recorder{notes: map[string]string{}, ranks: map[rankKey]string{}}
}

func (s *recorder) SetRankNote(id string, rank int32, note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ranks[rankKey{id, rank}] = note
}

func (s *recorder) SetTargets(ends []RankEndpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.targets = append(s.targets, ends)
}

func (s *recorder) rankNote(id string, rank int32) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ranks[rankKey{id, rank}]
}

// ends returns the newest targets: "w 0 10.9.0.5:5559" for each.
func (s *recorder) ends() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.targets) == 0 {
		return nil
	}
	for _, e := range s.targets[len(s.targets)-1] {
		all = append(all, fmt.Sprintf("%s %d %s", e.WorkerID, e.Rank, endpoint{e.Host, e.Port}))
	}
	return all
}

// pushers are plain workers that push, whatever their engines say.
func pushers(urls ...string) (specs []Spec) {
	for _, url := range urls {
		specs = append(specs, Spec{URL: url, Role: load.RoleRegular, Transport: load.TransportPush})
	}
	return specs
}

func (s *recorder) SetWorkers(w []*load.Worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set := make([]load.Worker, len(w))
	for i := range w {
		set[i] = *w[i]
	}
	s.sets = append(s.sets, set)
}

func (s *recorder) SetNote(id, note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	s.notes[id] = note
}

func (s *recorder) note(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notes[id]
}

// workers returns the ids of the newest set in one string; "none yet" before the first.
func (s *recorder) workers() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sets) == 0 {
		return "none yet"
	}
	var ids []string
	for _, w := range s.sets[len(s.sets)-1] {
		ids = append(ids, w.ID)
	}
	return strings.Join(ids, " ")
}

// start runs the registry until the test's end or the returned function's call, whichever is first.
func start(t *testing.T, r *Registry) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run returned %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func mustNew(t *testing.T, o Options) *Registry {
	t.Helper()
	if o.Sink == nil {
		o.Sink = newSink()
	}
	if !o.Listen.IsValid() {
		o.Listen = listenLoopback
	}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// registration returns what the registry shows of one worker.
func registration(t *testing.T, r *Registry, id string) load.Registration {
	t.Helper()
	for _, reg := range r.Registrations() {
		if reg.Worker.ID == id {
			return reg
		}
	}
	t.Fatalf("worker %q is not registered", id)
	return load.Registration{}
}

// figure returns one value of the registry's metrics; label is "name=value" or empty.
func figure(t *testing.T, r *Registry, name, label string) float64 {
	t.Helper()
	for _, m := range r.Metrics() {
		if m.Name != name {
			continue
		}
		found, got := false, 0.0
		m.Collect(func(v float64, labels ...load.Label) {
			at := ""
			for _, l := range labels {
				at = l.Name + "=" + l.Value
			}
			if at == label {
				found, got = true, v
			}
		})
		if found {
			return got
		}
	}
	t.Fatalf("no metric %s{%s}", name, label)
	return 0
}
