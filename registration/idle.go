package registration

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// sweepEvery is how often idle connections are looked over, and files counted when no connection comes back.
	sweepEvery = time.Second
	// lookAfter is how long a connection is taken to stand once that was seen. Engines hang up on those that were idle for
	// 5 s as a rule, and leases are renewed more often than that.
	lookAfter = 5 * time.Second
)

// idle keeps a connection to each engine between two requests: without a goroutine, and without more memory than the
// socket's and that of TLS. What happens to a connection meanwhile shows when it is taken, or at the next sweep.
//
// A connection that is kept costs a file. Others need files more, who cannot do without: engines' and watchers' connections,
// ZMQ sockets. So a quarter of the open-file limit stays free, and the connections that find no room are closed after their
// answer. Nothing that is kept makes room for another one: with more engines than room, each would be closed just before its
// engine is asked again.
type idle struct {
	// immutable
	began time.Time
	after time.Duration            // for so long one is kept that nobody takes
	files func() (open, limit int) // open 0: that is not known

	mu sync.Mutex
	// guarded by mu
	conns  map[string]keptConn // by the engine's URL
	timer  *time.Timer         // of the next sweep; nil: none is due
	closed bool
}

// keptConn is a connection and two times since idle.began.
type keptConn struct {
	net.Conn
	since time.Duration // nobody has taken it
	seen  time.Duration // it stood
}

func newIdle(after time.Duration, files func() (open, limit int)) *idle {
	return &idle{began: time.Now(), after: after, files: files, conns: make(map[string]keptConn)}
}

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

// put keeps a connection on which nothing is under way, or closes it. The files are counted each time: others may open
// thousands within a second.
func (p *idle) put(url string, c net.Conn) {
	now := time.Since(p.began)
	if p.tooMany() > 0 || !p.keep(url, keptConn{c, now, now}) {
		_ = c.Close()
	}
}

// tooMany returns how many files more are open than three quarters of the limit, if any.
func (p *idle) tooMany() int {
	open, limit := p.files()
	if open == 0 { // others are taken to have half of the limit
		p.mu.Lock()
		open = limit/2 + len(p.conns)
		p.mu.Unlock()
	}
	return max(0, open-(limit-limit/4))
}

func (p *idle) keep(url string, c keptConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, taken := p.conns[url]; taken || p.closed {
		return false
	}
	p.conns[url] = c
	if p.timer == nil {
		p.timer = time.AfterFunc(sweepEvery, p.sweep)
	}
	return true
}

// remove takes those out that are wanted.
func (p *idle) remove(wanted func(keptConn) bool) map[string]keptConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	removed := make(map[string]keptConn)
	for url, c := range p.conns {
		if wanted(c) {
			delete(p.conns, url)
			removed[url] = c
		}
	}
	return removed
}

// sweep closes the connections that nobody takes, those that the engine has closed, and those that are too many.
func (p *idle) sweep() {
	now := time.Since(p.began)
	for url, c := range p.remove(func(c keptConn) bool { return now-c.seen >= lookAfter }) {
		c.seen = now
		if now-c.since >= p.after || !silent(c.Conn) || !p.keep(url, c) {
			_ = c.Close()
		}
	}
	if n := p.tooMany(); n > 0 {
		for _, c := range p.remove(func(keptConn) bool { n--; return n >= 0 }) {
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
		// It may hold what came together with the last answer. A read that is late to begin with takes nothing else.
		_ = t.SetReadDeadline(time.Unix(1, 0))
		if _, err := t.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
		_ = t.SetReadDeadline(time.Time{})
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

// openFiles returns how many files the process has open, which Linux tells since 6.2, and how many it may have. Counting
// them one by one takes 8 ms for 10,000, and the number of a new one says nothing once files are closed in any order.
func openFiles() (open, limit int) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, 1024 // a common one
	}
	limit = int(min(r.Cur, 1<<22))
	var fds syscall.Stat_t
	if err := syscall.Stat("/proc/self/fd", &fds); err != nil {
		return 0, limit
	}
	return int(fds.Size), limit
}
