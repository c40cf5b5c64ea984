// Package proxy is a TCP proxy for tests that can stop forwarding without closing anything: no FIN and no RST reaches
// either side, as when a link, a switch or a virtual machine in between freezes. It owns real sockets on loopback, so it
// does not run inside a testing/synctest bubble.
package proxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// Proxy forwards each connection to its listener to one target. All methods may be called from any goroutine.
type Proxy struct {
	// immutable after Start
	listener net.Listener
	done     sync.WaitGroup

	mu sync.Mutex
	// guarded by mu
	target string
	moving chan struct{} // closed while bytes may move; an open one means frozen
	closed bool
	conns  map[net.Conn]struct{} // both sides of every pair
}

// Start returns a proxy that listens on a free port of 127.0.0.1 and forwards to target, host:port. It is closed at the
// end of the test.
func Start(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("proxy to %s: %v", target, err)
	}
	p := &Proxy{listener: l, target: target, moving: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	close(p.moving)
	p.done.Go(p.accept)
	t.Cleanup(p.Close)
	return p
}

// Addr returns the host:port to dial.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Freeze stops all forwarding. Connections stay open and new ones are still accepted by the kernel, but no byte, FIN or
// RST passes, and a sender that goes on sending finds its window full.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.frozenLocked() && !p.closed {
		p.moving = make(chan struct{})
	}
}

// Unfreeze goes on where Freeze stopped; nothing was lost.
func (p *Proxy) Unfreeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozenLocked() {
		close(p.moving)
	}
}

// Cut closes the connections that there are and goes on accepting new ones.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

// Retarget makes new connections go to another target, host:port.
func (p *Proxy) Retarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Close closes the listener and every connection, and returns when all forwarding has ended. It may be called twice.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	if p.frozenLocked() {
		close(p.moving)
	}
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.listener.Close()
	p.done.Wait()
}

func (p *Proxy) frozenLocked() bool {
	select {
	case <-p.moving:
		return false
	default:
		return true
	}
}

// wait returns once bytes may move.
func (p *Proxy) wait() {
	for {
		p.mu.Lock()
		moving, frozen := p.moving, p.frozenLocked()
		p.mu.Unlock()
		if !frozen {
			return
		}
		<-moving
	}
}

func (p *Proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		if !p.add(near) {
			return
		}
		p.done.Go(func() { p.serve(near) })
	}
}

func (p *Proxy) serve(near net.Conn) {
	defer p.remove(near)
	p.wait()
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	far, err := net.Dial("tcp", target)
	if err != nil || !p.add(far) {
		return
	}
	defer p.remove(far)
	var both sync.WaitGroup
	both.Go(func() { p.copy(far, near) })
	both.Go(func() { p.copy(near, far) })
	both.Wait()
}

// copy forwards one direction, its end included.
func (p *Proxy) copy(dst, src net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		p.wait()
		n, err := src.Read(buf)
		p.wait() // what was read while the freeze began waits too
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				src.Close()
				return
			}
		}
		if errors.Is(err, io.EOF) {
			if half, ok := dst.(*net.TCPConn); ok {
				half.CloseWrite()
			}
			return
		}
		if err != nil {
			dst.Close()
			return
		}
	}
}

// add remembers a connection; false: the proxy is closed and so is c.
func (p *Proxy) add(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) remove(c net.Conn) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}
