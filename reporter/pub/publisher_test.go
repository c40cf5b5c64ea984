package pub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
)

func TestPublish_ThreeFramesOfEachFormArriveInOrder(t *testing.T) {
	t.Parallel()
	p := start(t, Options{})
	for _, tc := range []struct {
		form  Form
		topic string
	}{{LoadStat, "load"}, {LoadStatShort, "load"}, {LoadSnapshot, ""}} {
		const ranks = 3
		e := bind(t, p, Binding{Range: Range{Ranks: ranks}, Topic: tc.topic, Form: tc.form, Every: 1})
		for rank := range ranks {
			s := subscribe(t, e.Range().Endpoint(rank), tc.topic, 0)
			last := greet(t, e, rank, s)
			for n := range int64(20) {
				m := exchange(t, e, rank, s, n, Decode)
				if m.topic != tc.topic || m.sequence != last.sequence+1 {
					t.Fatalf("%v rank %d: %q %d %x after sequence %d", tc.form, rank, m.topic, m.sequence, m.payload, last.sequence)
				}
				if got := tell(t, m.payload)["dp_rank"]; got != fmt.Sprint(rank) {
					t.Errorf("%v rank %d claims to be %v", tc.form, rank, got)
				}
				last = m
			}
		}
	}
}

func TestPublish_SequenceBeginsAtZeroInEachLife(t *testing.T) {
	t.Parallel()
	p := start(t, Options{})
	e := bind(t, p, Binding{Range: Range{Ranks: 1}, Topic: "load"})
	where := e.Range()
	s := subscribe(t, where.Endpoint(0), "load", 0)
	for range 3 {
		greeted := greet(t, e, 0, s)
		if err := p.do(t.Context(), func() {}); err != nil { // Run has counted what it sent
			t.Fatal(err)
		}
		// Everything that was sent has a number, whether or not it was heard.
		if sent := e.Stats().Published; greeted.sequence != int64(sent)-1 {
			t.Errorf("sequence %d after %d messages, want one less", greeted.sequence, sent)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		e = bind(t, p, Binding{Range: where, Topic: "load"})
	}
}

// Case C4.
func TestPublish_UnchangedValueIsRepeatedAndChangedOneComesAtOnce(t *testing.T) {
	t.Parallel()
	p := start(t, Options{})
	e := bind(t, p, Binding{Range: Range{Ranks: 1}, Topic: "load"})
	s := subscribe(t, e.Range().Endpoint(0), "load", 0)
	greet(t, e, 0, s)
	begun := time.Now()
	last := exchange(t, e, 0, s, 1, Idle)
	for range 2 {
		m, ok := message{}, false
		for !ok {
			publish(t, e, 0, 1, Idle)
			m, ok = s.receive(time.Millisecond)
		}
		if m.sequence != last.sequence+1 || string(m.payload) != string(last.payload) {
			t.Errorf("sequence %d after %d, payload %x after %x", m.sequence, last.sequence, m.payload, last.payload)
		}
		last = m
	}
	if passed := time.Since(begun); passed < 2*heartbeat {
		t.Errorf("two repetitions of an unchanged value in %v", passed)
	}
	exchange(t, e, 0, s, 2, Idle)
}

func TestPublish_RankWithoutStepsIsSilentWhileOthersAreHeard(t *testing.T) {
	t.Parallel()
	p := start(t, Options{})
	e := bind(t, p, Binding{Range: Range{Ranks: 2}, Form: LoadSnapshot})
	silent, heard := subscribe(t, e.Range().Endpoint(0), "", 0), subscribe(t, e.Range().Endpoint(1), "", 0)
	greet(t, e, 0, silent)
	greet(t, e, 1, heard)
	begun := time.Now()
	for n := int64(1); time.Since(begun) < 2*heartbeat; n++ {
		exchange(t, e, 1, heard, n, Idle)
	}
	if m, ok := silent.receive(0); ok {
		t.Errorf("a rank without steps published %x", m.payload)
	}
}

// Cases F5 and F6: a subscriber that does not read costs nobody anything, and when it reads again every message that it
// gets is whole and the newest follows.
func TestPublish_StalledSubscriberBlocksNobody(t *testing.T) {
	t.Parallel()
	p := start(t, Options{})
	topic := strings.Repeat("t", MaxTopic) // long, so that buffers fill soon
	e := bind(t, p, Binding{Range: Range{Ranks: 1}, Topic: topic, Form: LoadSnapshot})
	stalled := subscribe(t, e.Range().Endpoint(0), topic, 1)
	greet(t, e, 0, stalled)
	reading := subscribe(t, e.Range().Endpoint(0), topic, 0)
	greet(t, e, 0, reading)

	// Far more than the buffers between hold, about a hundred messages, while the other one hears every now and then from the newest.
	const flood, between = 3_000, 300
	n, last := int64(0), int64(-1)
	for sent := e.Stats().Published; e.Stats().Published < sent+flood; {
		for pause := e.Stats().Published + between; e.Stats().Published < pause; {
			n++
			publish(t, e, 0, n, Idle)
		}
		for last != n {
			m, ok := reading.receive(5 * time.Millisecond)
			if !ok { // its pipe is small as well: what was shed is made good by the next value
				n++
				publish(t, e, 0, n, Idle)
				continue
			}
			got := running(t, m.payload)
			if got < last {
				t.Fatalf("%d after %d", got, last)
			}
			last = got
		}
	}

	// What the stalled one still gets is whole and rising, and then comes the newest.
	flooded := e.Stats().Published
	n++
	backlog, sequence, value := uint64(0), int64(-1), int64(-1)
	for deadline := time.Now().Add(patience); value != n; {
		if time.Now().After(deadline) {
			t.Fatalf("the newest value %d did not come; got %d", n, value)
		}
		publish(t, e, 0, n, Idle)
		m, ok := stalled.receive(5 * time.Millisecond)
		if !ok {
			continue
		}
		got := running(t, m.payload)
		if m.topic != topic || m.sequence <= sequence || got > 0 && got < value {
			t.Fatalf("%q %d %d after %d %d", m.topic, m.sequence, got, sequence, value)
		}
		sequence, value = m.sequence, got
		if uint64(sequence) < flooded {
			backlog++
		}
	}
	if s := e.Stats(); s.Failed != 0 || backlog > flooded/4 {
		t.Errorf("stats %+v: %d of %d messages came through to the one that did not read", s, backlog, flooded)
	}
}

func TestPublish_FromManyGoroutines(t *testing.T) {
	t.Parallel()
	p := start(t, Options{})
	const ranks, values = 4, 500
	var tasks sync.WaitGroup
	for range 3 {
		e := bind(t, p, Binding{Range: Range{Ranks: ranks}, Topic: "load"})
		for rank := range ranks {
			s := subscribe(t, e.Range().Endpoint(rank), "load", 0)
			greet(t, e, rank, s)
			tasks.Go(func() {
				for n := range int64(values) {
					l := loadOf(rank, n)
					if err := e.Publish(&l, Idle); err != nil {
						t.Error(err)
					}
				}
			})
			tasks.Go(func() {
				// The newest is never replaced, and a message that is waited for is not shed.
				for last := int64(-1); last != values-1; {
					m, ok := s.receive(100 * time.Millisecond)
					if !ok {
						l := loadOf(rank, values-1)
						_ = e.Publish(&l, Idle)
						continue
					}
					n := running(t, m.payload)
					if n < last {
						t.Errorf("%d after %d", n, last)
						return
					}
					last = n
				}
			})
		}
	}
	tasks.Wait()
}

// brokenSocket fails while it is told to.
type brokenSocket struct {
	socket
	broken bool
}

func (s *brokenSocket) SendBytes(b []byte, f zmq.Flag) (int, error) {
	if s.broken {
		return 0, errors.New("it is broken")
	}
	return s.socket.SendBytes(b, f)
}

func TestPublish_FailingEngineCostsNoOtherAndIsLoggedOncePerEpisode(t *testing.T) {
	t.Parallel()
	var log lines
	p := start(t, Options{Logger: log.logger()})
	bad, good := bind(t, p, Binding{Range: Range{Ranks: 2}, Topic: "load"}), bind(t, p, Binding{Range: Range{Ranks: 1}, Topic: "load"})
	s := subscribe(t, good.Range().Endpoint(0), "load", 0)
	greet(t, good, 0, s)
	setBroken := func(broken bool) {
		t.Helper()
		if err := p.do(t.Context(), func() {
			for i := range bad.ranks {
				r := &bad.ranks[i]
				if b, is := r.socket.(*brokenSocket); is {
					r.socket = b.socket
				}
				r.socket = &brokenSocket{r.socket, broken}
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	// Publishes to all and returns when each message was sent or has failed.
	value := int64(0)
	publishAll := func() {
		t.Helper()
		value++
		done := func() uint64 { s := bad.Stats(); return s.Published + s.Failed }
		before := done()
		for rank := range 2 {
			publish(t, bad, rank, value, Idle)
		}
		exchange(t, good, 0, s, value, Idle)
		for done() != before+2 {
			if err := p.do(t.Context(), func() {}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		setBroken(true)
		for range 5 {
			publishAll()
		}
		setBroken(false)
		for range 5 {
			publishAll()
		}
	}
	if s := bad.Stats(); s.Failed != 20 || s.Published != 20 {
		t.Errorf("stats %+v, want 20 failed and 20 published", s)
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if len(log.text) != 4 || !strings.Contains(log.text[0], "it is broken") || !strings.Contains(log.text[0], bad.Range().Endpoint(0)) {
		t.Errorf("log of two episodes:\n%s", strings.Join(log.text, ""))
	}
}

func TestPublish_RefusesWhatIsNoRank(t *testing.T) {
	t.Parallel()
	e := bind(t, start(t, Options{}), Binding{Range: Range{Ranks: 2}})
	for _, rank := range []int{-1, 2, 1 << 30} {
		l := loadOf(rank, 1)
		if err := e.Publish(&l, Idle); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprint(rank)) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestBind_OpensEveryPortOrNone(t *testing.T) {
	t.Parallel()
	p := start(t, Options{})
	e := bind(t, p, Binding{Range: Range{Ranks: 4}})
	r := e.Range()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	last := strings.TrimPrefix(r.Endpoint(3), "tcp://")
	taken, err := net.Listen("tcp", last)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, err = p.Bind(t.Context(), Binding{Range: r})
	if err == nil || !strings.Contains(err.Error(), "rank 3") || !strings.Contains(err.Error(), last) || !strings.Contains(err.Error(), "free port") {
		t.Errorf("error %v, want one that names rank and port", err)
	}
	for rank := range 3 {
		if c, err := net.Dial("tcp", strings.TrimPrefix(r.Endpoint(rank), "tcp://")); err == nil {
			c.Close()
			t.Errorf("rank %d is bound", rank)
		}
	}
	taken.Close()
	bind(t, p, Binding{Range: r})
}

func TestBind_RefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	p := start(t, Options{MaxSockets: 4})
	bind(t, p, Binding{Range: Range{Ranks: 2}})
	for _, tc := range []struct {
		b     Binding
		err   error
		names string
	}{
		{Binding{Range: Range{Host: "*"}}, ErrInvalid, "Ranks is 0"},
		{Binding{Range: Range{Host: "*", Base: 65533, Ranks: 8}}, ErrInvalid, "65533 to 65540"},
		{Binding{Range: Range{Host: "*", Base: -1, Ranks: 2}}, ErrInvalid, "-1"},
		{Binding{Range: Range{Host: "engine.pool", Ranks: 1}}, ErrInvalid, "engine.pool"},
		{Binding{Range: Range{Ranks: 1}}, ErrInvalid, `host ""`},
		{Binding{Range: Range{Host: "*", Ranks: 3}}, ErrTooManySockets, "MaxSockets"},
		{Binding{Range: Range{Host: "*", Ranks: 1}, Topic: strings.Repeat("x", MaxTopic+1)}, ErrInvalid, "Topic"},
		{Binding{Range: Range{Host: "*", Ranks: 1}, Form: 9}, ErrInvalid, "Form is 9"},
		{Binding{Range: Range{Host: "*", Ranks: 1}, Every: -1}, ErrInvalid, "Every is -1"},
		{Binding{Range: Range{Host: "*", Ranks: 1}, IdleInterval: -1}, ErrInvalid, "IdleInterval"},
	} {
		if _, err := p.Bind(t.Context(), tc.b); !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.names) {
			t.Errorf("%+v: %v, want %v with %q", tc.b, err, tc.err, tc.names)
		}
	}
	// A refusal takes no share.
	e := bind(t, p, Binding{Range: Range{Ranks: 2}})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	bind(t, p, Binding{Range: Range{Ranks: 2}})
}

func TestBind_AnyPortsAreConsecutiveAndDoNotOverlap(t *testing.T) {
	t.Parallel()
	p := start(t, Options{})
	for _, host := range []string{"127.0.0.1", "*", "0.0.0.0", "[::]", "::1", "[::1]"} {
		e := bind(t, p, Binding{Range: Range{Host: host, Ranks: 8}, Topic: "load"})
		r := e.Range()
		for other := range 8 {
			local := "tcp://127.0.0.1"
			if strings.Contains(host, "::") {
				local = "tcp://[::1]"
			}
			c, err := net.Dial("tcp", strings.TrimPrefix(fmt.Sprintf("%s:%d", local, r.Base+other), "tcp://"))
			if err != nil {
				t.Fatalf("%s rank %d: %v", host, other, err)
			}
			c.Close()
		}
		if strings.Contains(host, "::") && r.Host[0] != '[' {
			t.Errorf("host %s is told as %s", host, r.Host)
		}
	}
}

func TestPublisher_LifeIsNamedInItsErrors(t *testing.T) {
	t.Parallel()
	p, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	early, stop := context.WithCancel(t.Context())
	stop()
	if _, err := p.Bind(early, Binding{Range: Range{Host: "127.0.0.1", Ranks: 1}}); !errors.Is(err, context.Canceled) {
		t.Errorf("bind before run: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	e, closed := bind(t, p, Binding{Range: Range{Ranks: 2}}), bind(t, p, Binding{Range: Range{Ranks: 1}})
	if err := p.Run(ctx); !errors.Is(err, ErrAlreadyRunning) {
		t.Errorf("second run: %v", err)
	}
	publish(t, closed, 0, 1, Idle)
	for range 2 {
		if err := closed.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	l := loadOf(0, 1)
	if err := closed.Publish(&l, Idle); !errors.Is(err, ErrClosed) {
		t.Errorf("publish after close: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
	if err := e.Publish(&l, Idle); !errors.Is(err, ErrStopped) {
		t.Errorf("publish after run: %v", err)
	}
	if _, err := p.Bind(t.Context(), Binding{Range: Range{Host: "127.0.0.1", Ranks: 1}}); !errors.Is(err, ErrStopped) {
		t.Errorf("bind after run: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Errorf("close after run: %v", err)
	}
	for rank := range 2 {
		if c, err := net.Dial("tcp", strings.TrimPrefix(e.Range().Endpoint(rank), "tcp://")); err == nil {
			c.Close()
			t.Errorf("rank %d is still bound", rank)
		}
	}
}

func TestNew_RefusesMoreSocketsThanFilesAllow(t *testing.T) {
	if err := filesFor(100, 50, 350); err != nil {
		t.Errorf("350 files for 100 sockets beside 50: %v", err)
	}
	err := filesFor(8192, 50, 20000)
	if !errors.Is(err, ErrTooManySockets) {
		t.Fatal(err)
	}
	for _, names := range []string{"8192 sockets", "24576", "50", "20000", "ulimit -n"} {
		if !strings.Contains(err.Error(), names) {
			t.Errorf("%q does not name %q", err, names)
		}
	}
	for _, n := range []int{-1, MaxMaxSockets + 1} {
		if _, err := New(Options{MaxSockets: n}); !errors.Is(err, ErrInvalid) {
			t.Errorf("MaxSockets %d: %v", n, err)
		}
	}
}
