package engine

import (
	"context"
	"net"
	"sync"
)

// conns remembers the open connections of a process, so that a crash can reset all of them.
type conns struct {
	mu   sync.Mutex
	open map[*trackedConn]struct{}
	dead bool
}

// add takes a connection in; after a crash it is closed instead.
func (s *conns) add(c net.Conn) (net.Conn, error) {
	t := &trackedConn{Conn: c, set: s}
	s.mu.Lock()
	dead := s.dead
	if !dead {
		if s.open == nil {
			s.open = make(map[*trackedConn]struct{})
		}
		s.open[t] = struct{}{}
	}
	s.mu.Unlock()
	if dead {
		c.Close()
		return nil, net.ErrClosed
	}
	return t, nil
}

// dial opens a connection of the process.
func (s *conns) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return s.add(c)
}

// reset closes every connection so that the peer gets a reset, and refuses new ones.
func (s *conns) reset() {
	s.mu.Lock()
	s.dead = true
	open := s.open
	s.open = nil
	s.mu.Unlock()
	for c := range open {
		if tcp, ok := c.Conn.(*net.TCPConn); ok {
			tcp.SetLinger(0)
		}
		c.Conn.Close()
	}
}

type trackedConn struct {
	net.Conn
	set *conns
}

func (c *trackedConn) Close() error {
	c.set.mu.Lock()
	delete(c.set.open, c)
	c.set.mu.Unlock()
	return c.Conn.Close()
}

type trackedListener struct {
	net.Listener
	set *conns
}

func (l trackedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.set.add(c)
}
