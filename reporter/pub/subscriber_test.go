package pub

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/loadmonitor/loadmonitor/load"
)

// start runs a publisher until the end of the test.
func start(t *testing.T, opts Options) *Publisher {
	t.Helper()
	p, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return p
}

func bind(t *testing.T, p *Publisher, b Binding) *Engine {
	t.Helper()
	if b.Range.Host == "" {
		b.Range.Host = "127.0.0.1"
	}
	e, err := p.Bind(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// subscriber is a real SUB socket.
type subscriber struct {
	t        *testing.T
	socket   *zmq.Socket
	distance *time.Ticker // between messages that must arrive
}

// message is what came, checked to be three frames.
type message struct {
	topic    string
	sequence int64
	payload  []byte
}

const patience = 30 * time.Second

// subscribe connects to a rank. receiveQueue bounds what the socket takes in before it is read; 0: libzmq's default.
func subscribe(t *testing.T, endpoint, topic string, receiveQueue int) *subscriber {
	t.Helper()
	s, err := zmq.NewSocket(zmq.SUB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	err = errors.Join(s.SetLinger(0), s.SetSubscribe(topic), s.SetReconnectIvl(10*time.Millisecond))
	if receiveQueue > 0 {
		err = errors.Join(err, s.SetRcvhwm(receiveQueue), s.SetRcvbuf(4<<10))
	}
	if err = errors.Join(err, s.Connect(endpoint)); err != nil {
		t.Fatal(err)
	}
	distance := time.NewTicker(3 * time.Millisecond)
	t.Cleanup(distance.Stop)
	return &subscriber{t, s, distance}
}

// receive returns the next message, or false after the wait.
func (s *subscriber) receive(wait time.Duration) (message, bool) {
	s.t.Helper()
	if err := s.socket.SetRcvtimeo(wait); err != nil {
		s.t.Fatal(err)
	}
	frames, err := s.socket.RecvMessageBytes(0)
	if zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) {
		return message{}, false
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if len(frames) != 3 || len(frames[1]) != 8 {
		s.t.Fatalf("frames %q", frames)
	}
	return message{string(frames[0]), int64(binary.BigEndian.Uint64(frames[1])), frames[2]}, true
}

// must returns the next message.
func (s *subscriber) must() message {
	s.t.Helper()
	m, ok := s.receive(patience)
	if !ok {
		s.t.Fatalf("nothing came in %v", patience)
	}
	return m
}

// loadOf returns a load of which every count is n.
func loadOf(rank int, n int64) load.RankLoad {
	l := load.RankLoad{DPRank: int32(rank), SnapshotTimeUnixMs: 1761000000000}
	for s := range load.NumIntSignals {
		l.SetInt(s, n)
	}
	for s := range load.NumFloatSignals {
		l.SetFloat(s, 0)
	}
	return l
}

// greet publishes changing values until the subscriber has got the newest of them: what is sent before a subscription
// arrives is lost, and when the newest is there nothing else is on its way. It returns that message.
func greet(t *testing.T, e *Engine, rank int, s *subscriber) message {
	t.Helper()
	patience := 5 * time.Millisecond
	for n := int64(-1); n > -1_000_000; n-- {
		publish(t, e, rank, n, Idle)
		for {
			m, ok := s.receive(patience)
			if !ok { // not subscribed yet, or shed
				break
			}
			if running(t, m.payload) == n {
				return m
			}
			patience = time.Second // it is subscribed: the newest follows
		}
	}
	t.Fatal("no value was heard")
	return message{}
}

func publish(t *testing.T, e *Engine, rank int, n int64, step Step) {
	t.Helper()
	l := loadOf(rank, n)
	if err := e.Publish(&l, step); err != nil {
		t.Fatal(err)
	}
}

// exchange publishes a value that differs from the one before and returns the message that brings it. libzmq looks at
// what a subscriber has taken no more often than about once a millisecond, and sheds the ninth message until it does; so
// messages that must arrive keep that distance.
func exchange(t *testing.T, e *Engine, rank int, s *subscriber, n int64, step Step) message {
	t.Helper()
	<-s.distance.C
	publish(t, e, rank, n, step)
	m := s.must()
	if got := running(t, m.payload); got != n {
		t.Fatalf("got %d, want %d", got, n)
	}
	return m
}

// running reads the value of loadOf from a payload and checks that every count has it.
func running(t *testing.T, payload []byte) int64 {
	t.Helper()
	told := tell(t, payload)
	for _, key := range []string{"num_waiting_reqs", "num_used_tokens", "max_total_num_tokens"} {
		if told[key] != told["num_running_reqs"] {
			t.Fatalf("torn payload: %v", told)
		}
	}
	n, err := strconv.ParseInt(told["num_running_reqs"].(string), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// lines counts log records.
type lines struct {
	mu   sync.Mutex
	text []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, string(b))
	return len(b), nil
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
