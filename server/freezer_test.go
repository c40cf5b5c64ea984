package server

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// freezer is a TCP proxy that can stop forwarding without closing anything.
type freezer struct {
	net.Listener
	frozen atomic.Bool
	thaw   chan struct{} // closed at the end
}

func newFreezer(t *testing.T, target string) *freezer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &freezer{Listener: l, thaw: make(chan struct{})}
	var wg sync.WaitGroup
	pipe := func(dst, src net.Conn) {
		defer dst.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := src.Read(buf)
			if f.frozen.Load() {
				<-f.thaw
				return
			}
			if _, werr := dst.Write(buf[:n]); err != nil || werr != nil {
				return
			}
		}
	}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", target)
			if err != nil {
				_ = c.Close()
				continue
			}
			wg.Go(func() { pipe(up, c) })
			wg.Go(func() { pipe(c, up) })
		}
	})
	t.Cleanup(func() {
		close(f.thaw)
		_ = l.Close()
	})
	return f
}
