package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echo starts a server that sends back what it gets, with a prefix.
func echo(t *testing.T, prefix string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.WriteString(c, prefix)
				io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

func expect(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v: want %q", got, err, want)
	}
}

func TestProxy_ForwardsBothWaysAndTheEnd(t *testing.T) {
	p := Start(t, echo(t, "hello"))
	c := dial(t, p)
	expect(t, c, "hello")
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	c.(*net.TCPConn).CloseWrite()
	if rest, err := io.ReadAll(c); err != nil || string(rest) != "ping" {
		t.Fatalf("read %q, %v: want ping and the end", rest, err)
	}
}

func TestProxy_FreezeHoldsBytesAndEndsAndLosesNothing(t *testing.T) {
	p := Start(t, echo(t, "hello"))
	open, ended := dial(t, p), dial(t, p)
	expect(t, open, "hello")
	expect(t, ended, "hello")
	p.Freeze()
	p.Freeze()
	payload := bytes.Repeat([]byte("x"), 64)
	for _, c := range []net.Conn{open, ended} {
		if _, err := c.Write(payload); err != nil {
			t.Fatal(err)
		}
	}
	ended.(*net.TCPConn).CloseWrite()
	late := dial(t, p) // the kernel accepts it
	for name, c := range map[string]net.Conn{"open": open, "ended": ended, "late": late} {
		c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: frozen connection gave %d bytes, %v", name, n, err)
		}
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
	}
	p.Unfreeze()
	expect(t, open, string(payload))
	expect(t, late, "hello")
	if rest, err := io.ReadAll(ended); err != nil || !bytes.Equal(rest, payload) {
		t.Errorf("read %q, %v: want the payload and the end", rest, err)
	}
}

func TestProxy_CutEndsConnectionsAndRetargetMovesNewOnes(t *testing.T) {
	p := Start(t, echo(t, "one"))
	c := dial(t, p)
	expect(t, c, "one")
	p.Retarget(echo(t, "two"))
	p.Cut()
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("cut connection: %v", err)
	}
	expect(t, dial(t, p), "two")
}

func TestProxy_CloseEndsEverythingEvenWhenFrozen(t *testing.T) {
	p := Start(t, echo(t, "hello"))
	c := dial(t, p)
	expect(t, c, "hello")
	p.Freeze()
	p.Close()
	p.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("connection of a closed proxy: %v", err)
	}
	if _, err := net.Dial("tcp", p.Addr()); err == nil {
		t.Fatal("a closed proxy accepts")
	}
}
