package zmq

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loadmonitor/loadmonitor/bridge/zmq/zmqtest"
	"github.com/loadmonitor/loadmonitor/load"
)

// Case B1: each socket has its own sequence, and what comes with the same sequence again is the aggregator's to judge.
func TestBridge_DeliversEveryRankWithItsOwnSequence(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	p0, p1 := socket(t, c, anyPort), socket(t, c, anyPort)
	o := steady(s)
	start(t, o, target("w", 0, p0.Endpoint()), target("w", 1, p1.Endpoint()))
	meet(t, p0, s, "w", 0)
	meet(t, p1, s, "w", 1)
	for _, m := range []struct {
		rank     int32
		sequence int64
		running  int64
	}{{0, 1000, 5}, {1, 1003, 6}, {1, 1004, 7}, {1, 1004, 8}, {0, 500, 9}} {
		p := p0
		if m.rank == 1 {
			p = p1
		}
		if err := p.Send("load", m.sequence, running(m.running)); err != nil {
			t.Fatal(err)
		}
		s.await(t, fmt.Sprintf("%+v", m), func() bool {
			got := s.reports[targetKey{"w", m.rank}]
			last := &got[len(got)-1]
			return last.Sequence == m.sequence && runningOf(last) == m.running && last.CapacityOptional && last.Load.DPRank == m.rank
		})
	}
}

// Case B3: a gap is nothing to wait for, and what was skipped here is told apart from what was missed.
func TestBridge_GapsAndSkippedMessagesAddUp(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	p := socket(t, c, anyPort)
	o := steady(s)
	b, _ := start(t, o, target("w", 0, p.Endpoint()))
	n := meet(t, p, s, "w", 0)
	const burst = 200
	for i := range int64(burst) {
		if err := p.Send("load", n+i, running(i)); err != nil {
			t.Fatal(err)
		}
	}
	// The publisher's own send mark is small, so it may shed; what it sends after that gets through.
	last := n + burst + 497
	s.await(t, "the message after the gap", func() bool {
		if err := p.Send("load", last, running(7)); err != nil {
			t.Fatal(err)
		}
		got := s.reports[targetKey{"w", 0}]
		return got[len(got)-1].Sequence == last && runningOf(&got[len(got)-1]) == 7
	})
	s.await(t, "reports that account for every message that arrived", func() bool {
		var told float64
		for _, r := range s.reports[targetKey{"w", 0}] {
			told += float64(r.Conflated + 1)
		}
		return told == metric(t, b, "zmq_messages_total") &&
			told == metric(t, b, "zmq_messages_conflated_total")+metric(t, b, "zmq_messages_decoded_total")
	})
}

// Case B3: a message that was refused for its values did arrive, and those that were skipped before it as well.
func TestBridge_RefusedMessagesAddUp(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	s.refuse = func(r *load.RankReport) error {
		if runningOf(r) == 66 {
			return load.ErrNegative
		}
		return nil
	}
	p := socket(t, c, anyPort)
	b, _ := start(t, steady(s), target("w", 0, p.Endpoint()))
	n := meet(t, p, s, "w", 0)
	for i := range int64(3) {
		if err := p.Send("load", n+i, running(66)); err != nil {
			t.Fatal(err)
		}
		s.await(t, "it to be refused", func() bool { return metric(t, b, "zmq_messages_refused_total") > float64(i) })
	}
	if err := p.Send("load", n+3, running(7)); err != nil {
		t.Fatal(err)
	}
	s.await(t, "reports that account for every message that arrived", func() bool {
		var told uint64
		for _, r := range s.reports[targetKey{"w", 0}] {
			told += r.Conflated + 1
		}
		return float64(told) == metric(t, b, "zmq_messages_total")
	})
}

// Case C4: an idle engine repeats itself; every repetition is handed on.
func TestBridge_EqualMessagesAreHandedOn(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	e := publish(t, c, anyPort, running(0))
	start(t, steady(s), target("w", 0, e.endpoint))
	got := s.awaitReports(t, "w", 0, 20)
	for i := range got[1:] {
		if got[i+1].Sequence <= got[i].Sequence {
			t.Fatalf("sequence %d after %d", got[i+1].Sequence, got[i].Sequence)
		}
	}
}

// Case E4: ranks that are no longer targets are closed, and nothing of them is handed on after SetTargets has returned.
func TestBridge_ShrinkingClosesSockets(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	var targets []Target
	for r := range int32(8) {
		targets = append(targets, target("w", r, publish(t, c, anyPort, running(int64(r))).endpoint))
	}
	b, _ := start(t, steady(s), targets...)
	for r := range int32(8) {
		s.awaitReports(t, "w", r, 2)
	}
	b.SetTargets(targets[:2])
	// One message may be on its way; the socket's Release comes after it.
	s.await(t, "six streams to end", func() bool { return s.ended >= 6 })
	before := make(map[int32]int)
	for r := int32(2); r < 8; r++ {
		before[r] = s.count("w", r)
	}
	for range 5 {
		s.awaitMore(t, "w", 0)
		s.awaitMore(t, "w", 1)
	}
	for r, n := range before {
		if got := s.count("w", r); got != n {
			t.Errorf("rank %d: %d messages after its socket was closed", r, got-n)
		}
	}
	s.await(t, "two sockets", func() bool { return metric(t, b, "zmq_sockets") == 2 && metric(t, b, "zmq_targets") == 2 })
}

// Case E4: messages of a rank that left which are in its socket still are counted, and handed to nobody.
func TestBridge_LateMessagesAreCounted(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	p0, p5 := socket(t, c, anyPort), socket(t, c, anyPort)
	o := steady(s)
	o.Owners = 1
	b, _ := start(t, o, target("w", 0, p0.Endpoint()), target("w", 5, p5.Endpoint()))
	n0, n5 := meet(t, p0, s, "w", 0), meet(t, p5, s, "w", 5)
	held, release := make(chan struct{}), make(chan struct{})
	s.mu.Lock()
	s.refuse = func(r *load.RankReport) error {
		if r.Load.DPRank == 0 && runningOf(r) == 77 {
			s.mu.Unlock()
			close(held)
			<-release
			s.mu.Lock()
		}
		return nil
	}
	s.mu.Unlock()
	if err := p0.Send("load", n0, running(77)); err != nil {
		t.Fatal(err)
	}
	<-held
	if err := p5.Send("load", n5, running(5)); err != nil {
		t.Fatal(err)
	}
	// The owner is held, so whether the message is in the socket is seen by its descriptor.
	b.mu.Lock()
	fds := []unix.PollFd{{Fd: int32(b.ranks[targetKey{"w", 5}].conn.fd), Events: unix.POLLIN}}
	b.mu.Unlock()
	s.await(t, "the message to arrive", func() bool {
		n, err := unix.Poll(fds, 0)
		return err == nil && n == 1
	})
	b.SetTargets([]Target{target("w", 0, p0.Endpoint())})
	close(release)
	s.await(t, "the late message to be counted", func() bool { return metric(t, b, "zmq_messages_late_total") >= 1 })
	if got := s.awaitReports(t, "w", 5, 1); runningOf(&got[len(got)-1]) == 5 {
		t.Error("a late message was handed on")
	}
}

// A note outlives its target: whoever took the rank away may have said why.
func TestBridge_NoteOutlivesItsTarget(t *testing.T) {
	t.Parallel()
	s := newRecorder()
	b, _ := start(t, steady(s), target("w", 0, endpointOf(freePort(t))))
	s.awaitNote(t, "w", 0, "refuses connections")
	b.SetTargets(nil)
	s.mu.Lock()
	s.notes[targetKey{"w", 0}] = "not dialled: its socket is another worker's"
	s.mu.Unlock()
	b.SetTargets([]Target{{WorkerID: "x", Port: 0, Host: "::1"}})
	s.awaitNote(t, "x", 0, "port 0 is not dialled") // so the one before is done
	s.awaitNote(t, "w", 0, "another worker's")
}

// A rank whose target stays the same keeps its connection; one whose generation changed is dialled anew.
func TestBridge_ChangedTargetsAreDialledAnew(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	stays := target("w", 0, publish(t, c, anyPort, running(0)).endpoint)
	changes := target("w", 1, publish(t, c, anyPort, running(1)).endpoint)
	b, _ := start(t, steady(s), stays, changes)
	s.awaitReports(t, "w", 0, 1)
	s.awaitReports(t, "w", 1, 1)
	changes.Generation++
	b.SetTargets([]Target{stays, changes})
	s.await(t, "another stream of rank 1", func() bool {
		n := 0
		for _, k := range s.streams {
			if k.rank == 1 {
				n++
			}
		}
		return n == 2 && s.ended == 1
	})
	s.awaitMore(t, "w", 0)
	if got := metric(t, b, "zmq_connects_total"); got != 3 {
		t.Errorf("%v connections, want 3", got)
	}
}

// Case G4: an engine may change the form of its messages, and equal content gives equal values in both. (A map has no
// counters since start, an array no shares.)
func TestBridge_FormsMaySwitch(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	e := publish(t, c, anyPort, []byte("\x96\xa8LoadStat\x07\x03\x64\xcd\x03\xe8\x00"))
	to := target("w", 0, e.endpoint)
	to.Topic, to.TopicKnown = "", false
	start(t, steady(s), to)
	array := s.awaitReports(t, "w", 0, 1)[0]
	e.set([]byte("\x84\xb0num_running_reqs\x07\xb0num_waiting_reqs\x03\xafnum_used_tokens\x64\xb4max_total_num_tokens\xcd\x03\xe8"))
	var asMap load.RankReport
	s.await(t, "a map", func() bool {
		got := s.reports[targetKey{"w", 0}]
		asMap = got[len(got)-1]
		return !asMap.CapacityOptional
	})
	for _, f := range loadStatHead {
		a, aKnown := array.Load.Int(f)
		m, mKnown := asMap.Load.Int(f)
		if a != m || a == 0 || !aKnown || !mKnown {
			t.Errorf("%s: %d (known: %v) as an array, %d (known: %v) as a map", f, a, aKnown, m, mKnown)
		}
	}
	e.set(running(1))
	s.await(t, "an array again", func() bool {
		got := s.reports[targetKey{"w", 0}]
		return got[len(got)-1].CapacityOptional
	})
}

// A second endpoint for a rank that has one is named and left alone.
func TestBridge_OneEndpointPerRank(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	first, second := publish(t, c, anyPort, running(2)), publish(t, c, anyPort, running(60))
	var out safeBuffer
	o := steady(s)
	o.Logger = newTestLogger(&out)
	start(t, o, target("w", 0, first.endpoint), target("w", 0, second.endpoint))
	for _, r := range s.awaitReports(t, "w", 0, 10) {
		if runningOf(&r) != 2 {
			t.Fatalf("case E6: a message of the second endpoint: %d", runningOf(&r))
		}
	}
	if !strings.Contains(out.String(), "two load endpoints") {
		t.Errorf("log says %q", out.String())
	}
}

// Case E6: two publishers in one list of endpoints both claim rank 0. Each feeds the rank whose endpoint it is, and what
// claims another rank is counted.
func TestBridge_TheEndpointSaysWhichRank(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	first, second := socket(t, c, anyPort), socket(t, c, anyPort)
	b, _ := start(t, steady(s), target("w", 0, first.Endpoint()), target("w", 1, second.Endpoint()))
	n, m := meet(t, first, s, "w", 0), meet(t, second, s, "w", 1)
	const claims = 5
	var before float64 // once nothing from the meeting is on its way any more
	for i := range int64(claims + 1) {
		if i == 1 {
			before = metric(t, b, "zmq_messages_other_rank_total")
		}
		for _, send := range []struct {
			p        *zmqtest.Publisher
			rank     int32
			seq, run int64
		}{{first, 0, n + i, 2}, {second, 1, m + i, 60}} {
			ofRank0 := append([]byte("\x96\xa8LoadStat"), byte(send.run), 0, 100, 0xcd, 0x03, 0xe8, 0)
			if err := send.p.Send("load", send.seq, ofRank0); err != nil {
				t.Fatal(err)
			}
			s.await(t, "the message of that endpoint", func() bool {
				got := s.reports[targetKey{"w", send.rank}]
				return got[len(got)-1].Sequence == send.seq
			})
		}
	}
	for rank, want := range []int64{2, 60} {
		all := s.awaitReports(t, "w", int32(rank), claims)
		for _, r := range all[len(all)-claims:] {
			if runningOf(&r) != want {
				t.Errorf("rank %d runs %d, want %d", rank, runningOf(&r), want)
			}
		}
	}
	if got := metric(t, b, "zmq_messages_other_rank_total") - before; got != claims {
		t.Errorf("%v messages that claim another rank, want %d", got, claims)
	}
}

// Case E7: ports that cannot be are named, never dialled, and disturb nobody.
func TestBridge_PortsOutOfRangeAreNotDialled(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	good := target("good", 0, publish(t, c, anyPort, running(1)).endpoint)
	targets := []Target{good}
	for i, port := range []int{0, -1, 65536, 70000} {
		targets = append(targets, Target{WorkerID: "bad", Rank: int32(i), Host: "127.0.0.1", Port: port})
	}
	targets = append(targets, Target{WorkerID: "nohost", Port: 1}, Target{WorkerID: "key", Host: "::1", Port: 1, ServerKey: "short"})
	b, _ := start(t, steady(s), targets...)
	for i, port := range []string{"0", "-1", "65536", "70000"} {
		s.awaitNote(t, "bad", int32(i), "port "+port+" is not dialled")
	}
	s.awaitNote(t, "nohost", 0, "no host")
	s.awaitNote(t, "key", 0, "CURVE server key")
	s.awaitReports(t, "good", 0, 3)
	if got := metric(t, b, "zmq_connects_total"); got != 1 {
		t.Errorf("%v connections, want 1", got)
	}
	b.SetTargets(nil)
	s.await(t, "no socket", func() bool { return metric(t, b, "zmq_sockets") == 0 })
}

// What the aggregator refuses because of who it is about ends the stream; what it refuses as a value does not.
func TestBridge_RefusalsOfIdentityEndTheStream(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
		ends bool
	}{
		{"unknown worker", load.ErrUnknownWorker, true},
		{"other transport", load.ErrWrongTransport, true},
		{"conflict", load.ErrOriginConflict, true},
		{"duplicate", load.ErrSequenceOld, false},
		{"two publishers", load.ErrPublisherConflict, false},
		{"value", load.ErrNegative, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, s := testContext(t), newRecorder()
			e := publish(t, ctx, anyPort, running(1))
			asked := 0
			s.refuse = func(*load.RankReport) error {
				asked++
				if asked <= 3 {
					return fmt.Errorf("wrapped: %w", c.err)
				}
				return nil
			}
			b, _ := start(t, steady(s), target("w", 0, e.endpoint))
			s.awaitReports(t, "w", 0, 3)
			s.mu.Lock()
			defer s.mu.Unlock()
			want := 0
			if c.ends {
				want = 3
			}
			if s.ended != want {
				t.Errorf("%d streams ended, want %d", s.ended, want)
			}
			if got := metric(t, b, "zmq_messages_refused_total"); got != 3 {
				t.Errorf("%v refused, want 3", got)
			}
		})
	}
}

// The aggregator ends a stream: its socket goes, and as long as the rank is a target another one comes.
func TestBridge_EndedStreamIsDropped(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	e := publish(t, c, anyPort, running(1))
	start(t, steady(s), target("w", 0, e.endpoint))
	s.awaitReports(t, "w", 0, 1)
	s.mu.Lock()
	for st := range s.streams {
		st.End(load.ErrWorkerRemoved)
	}
	s.mu.Unlock()
	s.await(t, "the stream to be released", func() bool { return s.ended == 1 })
	s.awaitMore(t, "w", 0)
}

func TestBridge_RunEndsCleanly(t *testing.T) {
	c, s := testContext(t), newRecorder()
	var targets []Target
	for r := range int32(16) {
		targets = append(targets, target("w", r, publish(t, c, anyPort, running(int64(r))).endpoint))
	}
	targets = append(targets, Target{WorkerID: "dead", Host: "127.0.0.1", Port: 1})
	freePort(t) // the runtime opens its own poller with the first use of the network
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	b, stop := start(t, steady(s), targets...)
	for r := range int32(16) {
		s.awaitReports(t, "w", r, 2)
	}
	stop()
	s.await(t, "all streams to be released", func() bool { return s.ended == 16 })
	awaitBase(t, s, goroutines, files)
	if got := metric(t, b, "zmq_sockets"); got != 0 {
		t.Errorf("%v sockets after Run has returned", got)
	}
	b.SetTargets(targets) // nobody listens, and nothing breaks
	if err := b.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "called before") {
		t.Errorf("second Run: %v", err)
	}
}

func TestNew_NamesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*Options)
		want string
	}{
		{"sink", func(o *Options) { o.Sink = nil }, "Sink"},
		{"heartbeat", func(o *Options) { o.Heartbeat = time.Second }, "heartbeat is 1s: want at least 10s"},
		{"rate cap", func(o *Options) { o.RankInterval = -1 }, "rank interval is -1ns"},
		{"owners", func(o *Options) { o.Owners = -1 }, "-1 owners"},
		{"sockets", func(o *Options) { o.MaxSockets = -1 }, "-1 sockets"},
		{"key", func(o *Options) { o.Curve.ServerKey = "x" }, "CURVE server key has 1 characters"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := Options{Sink: newRecorder()}
			c.set(&o)
			if _, err := New(o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// awaitBase waits until no more goroutines and descriptors are in use than before.
func awaitBase(t testing.TB, s *recorder, goroutines, files int) {
	t.Helper()
	var g, f int
	defer func() {
		if t.Failed() {
			stacks := make([]byte, 1<<20)
			t.Logf("goroutines %d, before %d; descriptors %d, before %d\n%s", g, goroutines, f, files, stacks[:runtime.Stack(stacks, true)])
		}
	}()
	s.await(t, "goroutines and descriptors to be given back", func() bool {
		g, f = runtime.NumGoroutine(), openFiles(t)
		return g <= goroutines && f <= files
	})
}

func openFiles(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// safeBuffer is a buffer for a logger.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
