package integration

import (
	"context"
	"errors"
	"net"
	"sync"
)

// network connects clients with the monitor in memory. Whoever dials has a name, and by that name its connections can be
// frozen and cut. One life of the monitor after the other may listen.
type network struct {
	accepted chan net.Conn
	closed   chan struct{}

	mu    sync.Mutex
	links map[string]*link
}

// link is what one name dialled so far.
type link struct {
	mu    sync.Mutex
	open  chan struct{} // closed unless the link is frozen
	conns []net.Conn
}

func newNetwork() *network {
	return &network{accepted: make(chan net.Conn), closed: make(chan struct{}), links: make(map[string]*link)}
}

// listener is a net.Listener for one life of the monitor.
type listener struct {
	network *network
	once    sync.Once
	closed  chan struct{}
}

func (n *network) listen() *listener { return &listener{network: n, closed: make(chan struct{})} }

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.network.accepted:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return name("monitor") }

// close refuses whoever dials from now on.
func (n *network) close() { close(n.closed) }

// name is the address of a peer.
type name string

func (name) Network() string  { return "memory" }
func (a name) String() string { return string(a) }

func (n *network) link(who string) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.links[who] == nil {
		open := make(chan struct{})
		close(open)
		n.links[who] = &link{open: open}
	}
	return n.links[who]
}

// dialer returns what a gRPC client needs to dial under a name.
func (n *network) dialer(who string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, _ string) (net.Conn, error) {
		near, far := net.Pipe()
		select {
		case n.accepted <- &serverEnd{far, name(who)}:
		case <-n.closed:
			return nil, errors.New("connection refused")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		l := n.link(who)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.conns = append(l.conns, near, far)
		return &clientEnd{Conn: near, link: l, done: make(chan struct{})}, nil
	}
}

// freeze stops the name's connections from delivering anything, also those to come: no FIN, no RST.
func (n *network) freeze(who string) {
	l := n.link(who)
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.open:
		l.open = make(chan struct{})
	default:
	}
}

// thaw lets them go on.
func (n *network) thaw(who string) {
	l := n.link(who)
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.open:
	default:
		close(l.open)
	}
}

// cut closes the name's connections at both ends.
func (n *network) cut(who string) {
	l := n.link(who)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

// serverEnd is what the server accepted; its peer is the name.
type serverEnd struct {
	net.Conn
	peer name
}

func (c *serverEnd) RemoteAddr() net.Addr { return c.peer }

// clientEnd takes nothing while its link is frozen. The pipe holds nothing, so the server's write waits with it.
type clientEnd struct {
	net.Conn
	link *link
	once sync.Once
	done chan struct{}
}

func (c *clientEnd) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.link.mu.Lock()
	open := c.link.open
	c.link.mu.Unlock()
	select {
	case <-open:
	case <-c.done:
	}
	return n, err
}

func (c *clientEnd) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}
