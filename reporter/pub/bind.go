package pub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	zmq "github.com/pebbe/zmq4"
)

// Bind opens a PUB socket for every rank of an engine, or none, and returns once they accept subscribers. It waits for Run
// to begin. The error names what cannot be bound and wraps ErrInvalid, ErrTooManySockets, ErrStopped, the context's error
// or the system's.
func (p *Publisher) Bind(ctx context.Context, b Binding) (*Engine, error) {
	if err := b.setDefaults(); err != nil {
		return nil, err
	}
	if err := p.reserve(b.Range.Ranks); err != nil {
		return nil, err
	}
	e, err := p.bind(ctx, b)
	if err != nil {
		p.release(b.Range.Ranks)
		return nil, err
	}
	return e, nil
}

// bind opens the ports itself and hands them to libzmq: this way they are had all together, and a port that is taken is
// known before there is a socket.
func (p *Publisher) bind(ctx context.Context, b Binding) (*Engine, error) {
	open, r, err := p.listen(b.Range)
	if err != nil {
		return nil, err
	}
	defer closeAll(open) // libzmq has descriptors of its own
	e := &Engine{p: p, bound: r, topic: []byte(b.Topic), form: b.Form, pace: b.pace(), ranks: make([]rank, r.Ranks)}
	for i := range e.ranks {
		e.ranks[i].e, e.ranks[i].number = e, i
	}
	var opened error
	if err := p.do(ctx, func() { opened = e.open(open) }); err != nil {
		return nil, fmt.Errorf("pub: %v: %w", r, err)
	}
	if opened != nil {
		return nil, opened
	}
	return e, nil
}

func (p *Publisher) listen(r Range) ([]*net.TCPListener, Range, error) {
	if r.Base != 0 {
		open, err := listenRange(r)
		return open, r, err
	}
	p.mu.Lock()
	from := p.nextPort
	p.mu.Unlock()
	open, base, err := listenAnywhere(r, from)
	if err != nil {
		return nil, Range{}, err
	}
	r.Base = base
	p.mu.Lock()
	p.nextPort = r.last() + 1
	p.mu.Unlock()
	return open, r, nil
}

// open makes the sockets. It is called by Run.
func (e *Engine) open(listeners []*net.TCPListener) error {
	e.p.engines[e] = struct{}{}
	for i := range e.ranks {
		s, err := e.p.newSocket(listeners[i], e.bound.Endpoint(i))
		if err != nil {
			e.closeSockets()
			return fmt.Errorf("pub: %s: %w", e.bound.Endpoint(i), err)
		}
		e.ranks[i].socket = s
	}
	return nil
}

// newSocket returns a PUB socket that listens on a descriptor of the listener's socket.
func (p *Publisher) newSocket(l *net.TCPListener, endpoint string) (socket, error) {
	s, err := p.context.NewSocket(zmq.PUB)
	if err != nil {
		return nil, err
	}
	err = errors.Join(s.SetSndhwm(sendQueue), s.SetLinger(0), s.SetMaxmsgsize(maxSubscription))
	if err == nil {
		err = listenOn(s, l, endpoint)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// listenOn binds s to a descriptor of the listener's socket. Only a bind that succeeds takes the descriptor over.
func listenOn(s *zmq.Socket, l *net.TCPListener, endpoint string) error {
	fd, err := detach(l)
	if err != nil {
		return err
	}
	// The connections inherit it. libzmq's own option is for descriptors that it opens.
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, sendBuffer)
	if err == nil {
		err = s.SetUseFd(fd)
	}
	if err == nil {
		err = s.Bind(endpoint)
	}
	if err != nil {
		syscall.Close(fd)
	}
	return err
}

// reserve takes a share of the sockets that are allowed.
func (p *Publisher) reserve(n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sockets+n > p.opts.MaxSockets {
		return fmt.Errorf("pub: %d ranks beside the %d sockets that are open: at most %d are allowed: raise Options.MaxSockets or publish fewer ranks: %w",
			n, p.sockets, p.opts.MaxSockets, ErrTooManySockets)
	}
	p.sockets += n
	return nil
}

func (p *Publisher) release(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sockets -= n
}
