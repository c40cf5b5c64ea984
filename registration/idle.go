package registration

import (
	"crypto/tls"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// sweepEvery is how often idle connections are looked over. Engines hang up on those that were idle for 5 s as a rule, and
// leases are renewed more often than that.
const sweepEvery = 5 * time.Second

// idle keeps a connection to each engine between two requests: without a goroutine, and without more memory than the
// socket's. What happens to a connection meanwhile shows when it is taken, or at the next sweep.
//
// A connection that is kept costs a file. Others need files more, who cannot do without: engines' and watchers' connections,
// ZMQ sockets. So a quarter of the open-file limit stays free, and the connections that find no room are closed after their
// answer. Nothing that is kept makes room for another one: with more engines than room, each would be closed just before its
// engine is asked again.
type idle struct {
	// immutable
	after time.Duration // for so long one is kept that nobody takes
	files func() (open, limit int)

	mu sync.Mutex
	// guarded by mu
	conns  map[string]keptConn // by the engine's URL
	room   int                 // for so many
	timer  *time.Timer         // of the next sweep; nil: none is due
	closed bool
}

type keptConn struct {
	net.Conn
	since time.Time
}

func newIdle(after time.Duration, files func() (open, limit int)) *idle {
	p := &idle{after: after, files: files, conns: make(map[string]keptConn)}
	open, limit := files()
	p.room = roomFor(open, limit, 0)
	return p
}

// roomFor returns how many connections may be kept where so many files are open, these connections among them.
func roomFor(open, limit, kept int) int { return max(0, limit-limit/4-max(0, open-kept)) }

// take returns the connection that is kept for an engine, if it still stands; nil: none is.
func (p *idle) take(url string) net.Conn {
	p.mu.Lock()
	c, ok := p.conns[url]
	delete(p.conns, url)
	p.mu.Unlock()
	if !ok {
		return nil
	}
	if !silent(c.Conn) {
		_ = c.Close()
		return nil
	}
	return c.Conn
}

// put keeps a connection on which nothing is under way, or closes it.
func (p *idle) put(url string, c net.Conn) { p.keepOrClose(url, keptConn{c, time.Now()}) }

func (p *idle) keepOrClose(url string, c keptConn) {
	if !p.keep(url, c) {
		_ = c.Close()
	}
}

func (p *idle) keep(url string, c keptConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, taken := p.conns[url]; taken || p.closed || len(p.conns) >= p.room {
		return false
	}
	p.conns[url] = c
	if p.timer == nil {
		p.timer = time.AfterFunc(sweepEvery, p.sweep)
	}
	return true
}

// sweep closes the connections that nobody takes, those that the engine has closed, and those that are too many.
func (p *idle) sweep() {
	now := time.Now()
	open, limit := p.files()
	doubtful := make(map[string]keptConn)
	p.mu.Lock()
	p.room = roomFor(open, limit, len(p.conns))
	for url, c := range p.conns {
		if len(p.conns) > p.room || now.Sub(c.since) >= sweepEvery {
			delete(p.conns, url)
			doubtful[url] = c
		}
	}
	p.mu.Unlock()
	for url, c := range doubtful {
		if now.Sub(c.since) < p.after && silent(c.Conn) {
			p.keepOrClose(url, c)
		} else {
			_ = c.Close()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer = nil; len(p.conns) > 0 && !p.closed {
		p.timer = time.AfterFunc(sweepEvery, p.sweep)
	}
}

// close closes every connection, and those that come later.
func (p *idle) close() {
	p.mu.Lock()
	conns := p.conns
	p.conns, p.closed = nil, true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// silent reports whether nothing has come over an idle connection, not even its end. What an engine says unasked would be
// taken for the answer to the next request.
func silent(c net.Conn) bool {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	socket, ok := c.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	nothing := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, err := syscall.Read(int(fd), b[:])
		nothing = err == syscall.EAGAIN
		return true // do not wait
	})
	return err == nil && nothing
}

// openFiles returns about how many files the process has open, and how many it may have: the number of a new one is the
// lowest that is free.
func openFiles() (open, limit int) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, 1024 // a common one
	}
	limit = int(min(r.Cur, 1<<22))
	fd, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return limit, limit
	}
	_ = syscall.Close(fd)
	return fd, limit
}
