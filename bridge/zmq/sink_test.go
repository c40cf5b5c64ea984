package zmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/loadmonitor/loadmonitor/bridge/zmq/zmqtest"
	"github.com/loadmonitor/loadmonitor/load"
)

// patience bounds waiting for something that must happen; what a test says of time is checked apart from it.
const testPatience = 20 * time.Second

// recorder is a sink that remembers, and refuses what it is told to.
type recorder struct {
	mu       sync.Mutex
	changed  chan struct{}
	reports  map[targetKey][]load.RankReport
	streams  map[*load.Stream]targetKey
	released map[*load.Stream]bool
	ended    int
	notes    map[targetKey]string
	history  map[targetKey][]string // notes ever set
	refuse   func(r *load.RankReport) error
}

func newRecorder() *recorder {
	return &recorder{
		changed: make(chan struct{}), reports: make(map[targetKey][]load.RankReport), streams: make(map[*load.Stream]targetKey),
		released: make(map[*load.Stream]bool), notes: make(map[targetKey]string), history: make(map[targetKey][]string),
	}
}

func (s *recorder) notifyLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *recorder) ApplyRank(st *load.Stream, r *load.RankReport) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := st.Err(); err != nil {
		return err
	}
	if s.released[st] {
		return errors.New("a message on a stream that was released")
	}
	if s.refuse != nil {
		if err := s.refuse(r); err != nil {
			return err
		}
	}
	k := targetKey{r.WorkerID, r.Load.DPRank}
	s.streams[st] = k
	s.reports[k] = append(s.reports[k], *r)
	s.notifyLocked()
	return nil
}

func (s *recorder) Release(st *load.Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released[st] = true
	s.ended++
	s.notifyLocked()
}

func (s *recorder) SetRankNote(worker string, rank int32, note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := targetKey{worker, rank}
	s.notes[k] = note
	if note != "" {
		s.history[k] = append(s.history[k], note)
	}
	s.notifyLocked()
}

// await waits until a condition on what was recorded holds. The condition is called under the lock.
func (s *recorder) await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(testPatience)
	tick := time.NewTicker(20 * time.Millisecond) // for conditions on more than the record
	defer tick.Stop()
	for {
		s.mu.Lock()
		ok, changed := holds(), s.changed
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-deadline:
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Fatalf("waiting for %s: %s", what, s.describeLocked())
		}
	}
}

func (s *recorder) describeLocked() string {
	var b strings.Builder
	for k := range maps.Keys(s.reports) {
		fmt.Fprintf(&b, "\n%v: %d reports", k, len(s.reports[k]))
	}
	for k, n := range s.notes {
		fmt.Fprintf(&b, "\n%v: note %q", k, n)
	}
	return b.String()
}

func (s *recorder) count(worker string, rank int32) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.reports[targetKey{worker, rank}])
}

func (s *recorder) awaitReports(t testing.TB, worker string, rank int32, n int) []load.RankReport {
	t.Helper()
	k := targetKey{worker, rank}
	var got []load.RankReport
	s.await(t, fmt.Sprintf("%d reports of %v", n, k), func() bool {
		got = append(got[:0], s.reports[k]...)
		return len(got) >= n
	})
	return got
}

// awaitMore waits for a report that has not been recorded yet.
func (s *recorder) awaitMore(t testing.TB, worker string, rank int32) load.RankReport {
	t.Helper()
	all := s.awaitReports(t, worker, rank, s.count(worker, rank)+1)
	return all[len(all)-1]
}

func (s *recorder) awaitNote(t testing.TB, worker string, rank int32, part string) {
	t.Helper()
	k := targetKey{worker, rank}
	s.await(t, fmt.Sprintf("a note with %q for %v", part, k), func() bool {
		if part == "" {
			note, set := s.notes[k]
			return set && note == ""
		}
		return strings.Contains(s.notes[k], part)
	})
}

// awaitNoted waits for a note that was set at some time.
func (s *recorder) awaitNoted(t testing.TB, worker string, rank int32, part string) {
	t.Helper()
	k := targetKey{worker, rank}
	s.await(t, fmt.Sprintf("a note with %q for %v", part, k), func() bool {
		for _, n := range s.history[k] {
			if strings.Contains(n, part) {
				return true
			}
		}
		return false
	})
}

// Tests listen here rather than at 127.0.0.1, from where connections begin: a port that was just let go may be taken there
// by the near end of any connection.
const (
	testHost = "127.0.0.77"
	anyPort  = "tcp://" + testHost + ":*"
)

// steady are options with which a dial is soon tried again, and silence is no trouble.
func steady(s Sink) Options {
	o := quick(s)
	o.Silence = time.Minute
	return o
}

// quick are options with which trouble is noticed soon.
func quick(s Sink) Options {
	return Options{
		Sink: s, Silence: 500 * time.Millisecond, DialTimeout: 300 * time.Millisecond, RetryMax: 200 * time.Millisecond, Owners: 2,
	}
}

// start runs a bridge until the end of the test or until stop is called.
func start(t testing.TB, o Options, targets ...Target) (b *Bridge, stop func()) {
	t.Helper()
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	b.SetTargets(targets)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(testPatience):
			t.Error("Run does not return")
		}
	})
	t.Cleanup(stop)
	return b, stop
}

func testContext(t testing.TB) *zmq4.Context {
	t.Helper()
	c, err := zmq4.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetMaxSockets(16384); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Term() })
	return c
}

// inherit binds a port that somebody else had just before: libzmq closes sockets some time after it was told to.
func inherit[T any](t testing.TB, bind func() (T, error)) T {
	t.Helper()
	for began := time.Now(); ; runtime.Gosched() {
		bound, err := bind()
		if err == nil {
			return bound
		}
		if inUse := errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, zmq4.Errno(syscall.EADDRINUSE)); !inUse || time.Since(began) > testPatience {
			t.Fatal(err)
		}
	}
}

// engine publishes one message again and again, as an idle engine does but faster, until it is stopped.
type engine struct {
	t        testing.TB
	endpoint string
	stop     func()

	mu       sync.Mutex
	payload  []byte
	topic    string
	sequence int64
}

const enginePeriod = 10 * time.Millisecond

// publish starts an engine at an endpoint, tcp://127.0.0.1:* for a free port.
func publish(t testing.TB, c *zmq4.Context, endpoint string, payload []byte) *engine {
	t.Helper()
	p := inherit(t, func() (*zmqtest.Publisher, error) { return zmqtest.NewPublisher(c, endpoint) })
	e := &engine{t: t, endpoint: p.Endpoint(), payload: payload, topic: "load"}
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer p.Close()
		tick := time.NewTicker(enginePeriod)
		defer tick.Stop()
		for {
			select {
			case <-stopped:
				return
			case <-tick.C:
			}
			e.mu.Lock()
			topic, sequence, payload := e.topic, e.sequence, e.payload
			e.sequence++
			e.mu.Unlock()
			if err := p.Send(topic, sequence, payload); err != nil {
				t.Errorf("publish: %v", err)
				return
			}
		}
	}()
	e.stop = sync.OnceFunc(func() { close(stopped); <-done })
	t.Cleanup(e.stop)
	return e
}

func (e *engine) set(payload []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.payload = payload
}

// target is a rank at an endpoint, on topic load.
func target(worker string, rank int32, endpoint string) Target {
	host, port := split(endpoint)
	return Target{WorkerID: worker, Rank: rank, Host: host, Port: port, Topic: "load", TopicKnown: true}
}

// running is a LoadStat payload that says how many requests run.
func running(n int64) []byte { return zmqtest.LoadStat(n, 0, 100, 1000, 0) }

func runningOf(r *load.RankReport) int64 {
	n, _ := r.Load.Int(load.NumRunningReqs)
	return n
}

// socket is a publisher that sends when it is told to, once the bridge has subscribed.
func socket(t testing.TB, c *zmq4.Context, endpoint string) *zmqtest.Publisher {
	t.Helper()
	p, err := zmqtest.NewPublisher(c, endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// meet sends until the bridge hears it: from then on what is sent arrives. It returns the next sequence.
func meet(t testing.TB, p *zmqtest.Publisher, s *recorder, worker string, rank int32) int64 {
	t.Helper()
	var n int64
	s.await(t, "a first report", func() bool {
		if err := p.Send("load", n, running(0)); err != nil {
			t.Fatal(err)
		}
		n++
		return len(s.reports[targetKey{worker, rank}]) > 0
	})
	return n
}

func metric(t testing.TB, b *Bridge, name string, label ...string) float64 {
	t.Helper()
	for _, m := range b.Metrics() {
		if m.Name != name {
			continue
		}
		sum := 0.0
		m.Collect(func(v float64, labels ...load.Label) {
			if len(label) == 0 || len(labels) > 0 && labels[0].Value == label[0] {
				sum += v
			}
		})
		return sum
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func newTestLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
