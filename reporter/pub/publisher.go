package pub

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	zmq "github.com/pebbe/zmq4"
)

const (
	sendQueue = 8 // messages per subscriber
	// sendBuffer is how much of the kernel's memory stands behind that queue, in bytes. The default grows to megabytes:
	// thousands of messages that a subscriber which stood still would read first.
	sendBuffer = 16 << 10
	// maxSubscription bounds what a subscriber may send, in bytes.
	maxSubscription = 4 << 10
)

// Publisher owns the PUB sockets of a process. Its methods may be called from any goroutine; the sockets, which are not
// safe for that, are touched by Run alone.
type Publisher struct {
	// immutable after New
	opts   Options
	logger *slog.Logger

	commands chan func() // carried out by Run between two messages
	wake     chan struct{}
	started  atomic.Bool
	stopped  chan struct{} // closed when Run has ended

	// used only by Run
	context  *zmq.Context
	engines  map[*Engine]struct{}
	batch    []*rank // taken from queue
	payload  []byte
	sequence [8]byte

	mu       sync.Mutex
	ended    bool
	sockets  int // of all engines
	nextPort int // where the search for free ports goes on
	encoder  *encoder
	queue    []*rank // with a payload to send, in order
}

// New returns a publisher. It opens nothing. The error says that as many sockets cannot be had.
func New(opts Options) (*Publisher, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	if err := checkFiles(opts.MaxSockets); err != nil {
		return nil, err
	}
	return &Publisher{
		opts:     opts,
		logger:   opts.Logger,
		commands: make(chan func()),
		wake:     make(chan struct{}, 1),
		stopped:  make(chan struct{}),
		engines:  make(map[*Engine]struct{}),
		nextPort: randomPort(),
		encoder:  newEncoder(),
	}, nil
}

// Run owns the sockets and sends until ctx ends; then it closes all of them, waits for libzmq to be done with them, which
// waits for no peer, and returns nil. It can be called once.
func (p *Publisher) Run(ctx context.Context) error {
	if !p.started.CompareAndSwap(false, true) {
		return fmt.Errorf("pub: %w", ErrAlreadyRunning)
	}
	defer close(p.stopped)
	var err error
	if p.context, err = p.newContext(); err != nil {
		return fmt.Errorf("pub: libzmq: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return p.end()
		case command := <-p.commands:
			command()
		case <-p.wake:
			p.send()
		}
	}
}

func (p *Publisher) newContext() (*zmq.Context, error) {
	c, err := zmq.NewContext()
	if err != nil {
		return nil, err
	}
	// A closed socket keeps its place for a moment, so an engine that restarts would find none at the exact number.
	if err := c.SetMaxSockets(min(MaxMaxSockets, 2*p.opts.MaxSockets+16)); err != nil {
		return nil, err
	}
	return c, nil
}

// end closes everything.
func (p *Publisher) end() error {
	p.mu.Lock()
	p.ended = true
	p.queue = nil
	p.mu.Unlock()
	for e := range p.engines {
		e.closeSockets()
	}
	if err := p.context.Term(); err != nil {
		return fmt.Errorf("pub: end of libzmq: %w", err)
	}
	return nil
}

// do has Run carry out f and returns after that.
func (p *Publisher) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case p.commands <- func() { f(); close(done) }:
		<-done
		return nil
	case <-p.stopped:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send sends what is queued now. What is queued meanwhile waits for the next turn, so that commands get theirs.
func (p *Publisher) send() {
	p.mu.Lock()
	p.batch, p.queue = p.queue, p.batch[:0]
	p.mu.Unlock()
	for i, r := range p.batch {
		r.send()
		p.batch[i] = nil
	}
}
