package server

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// Case L1: every way to write a listen address.
func TestSplitListen_KnowsEveryForm(t *testing.T) {
	cases := []struct{ in, host, port string }{
		{"127.0.0.1:0", "127.0.0.1", "0"},
		{"127.0.0.1", "127.0.0.1", "50061"},
		{"127.0.0.1:", "127.0.0.1", "50061"},
		{":9", "", "9"},
		{"::", "::", "50061"},
		{"[::]", "::", "50061"},
		{"[::]:0", "::", "0"},
		{"::1", "::1", "50061"},
		{"[::1]:7", "::1", "7"},
		{"fd00::5", "fd00::5", "50061"},
		{"[fd00::5]", "fd00::5", "50061"},
		{"localhost", "localhost", "50061"},
		{"localhost:8", "localhost", "8"},
	}
	for _, c := range cases {
		host, port, err := splitListen(c.in, DefaultGRPCAddr)
		if err != nil || host != c.host || port != c.port {
			t.Errorf("%q is %q, %q, %v; want %q, %q", c.in, host, port, err, c.host, c.port)
		}
	}
	for _, bad := range []string{"1:2:3", "[::1", "[::1]x", "a:b:c"} {
		if _, _, err := splitListen(bad, DefaultGRPCAddr); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// Rule LIFE5: what is not loopback needs the flag, and the error names it.
func TestListen_OpensOnlyLoopbackUnlessAllowed(t *testing.T) {
	for _, addr := range []string{"::", "[::]:0", "0.0.0.0:0", ":0", "[::ffff:0.0.0.0]:0", "192.0.2.1:0"} {
		if l, err := listen(t.Context(), "gRPC", addr, DefaultGRPCAddr, false); err == nil {
			_ = l.Close()
			t.Errorf("%q is opened", addr)
		} else if !strings.Contains(err.Error(), insecureFlag) || !strings.Contains(err.Error(), addr) {
			t.Errorf("%q: error names neither the address nor the remedy: %v", addr, err)
		}
	}
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0", "127.5.6.7:0", "localhost:0"} {
		l, err := listen(t.Context(), "gRPC", addr, DefaultGRPCAddr, false)
		if err != nil {
			t.Errorf("%q: %v", addr, err)
			continue
		}
		if ip := l.Addr().(*net.TCPAddr).IP; !ip.IsLoopback() {
			t.Errorf("%q listens on %v", addr, ip)
		}
		_ = l.Close()
	}
	for _, addr := range []string{"[::]:0", "0.0.0.0:0", ":0"} {
		l, err := listen(t.Context(), "gRPC", addr, DefaultGRPCAddr, true)
		if err != nil {
			t.Errorf("%q with the flag: %v", addr, err)
			continue
		}
		_ = l.Close()
	}
}

func TestRun_ServesIPv6(t *testing.T) {
	r := start(t, Options{GRPCAddr: "[::1]:0", HTTPAddr: "[::]:0", AllowInsecure: true})
	send(t, report(t, r.dial()), sane("src", 1))
	next(t, r.ingest.applied, "report over IPv6")
	if r.HTTPAddr().(*net.TCPAddr).Port == 0 {
		t.Errorf("HTTP is served at %v", r.HTTPAddr())
	}
}

func TestListen_TakenPortIsNamed(t *testing.T) {
	r := start(t, Options{})
	opts := Options{Ingest: newFakeIngest(nil), Registry: &fakeRegistry{}, Snapshots: newFakeSnapshots(load.FleetReady),
		GRPCAddr: "127.0.0.1:0", HTTPAddr: r.HTTPAddr().String()}
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), opts.HTTPAddr) {
		t.Errorf("error is %v", err)
	}
}

// Rule LIFE2: connections beyond the bound are closed at once and counted, and room comes back.
func TestListener_BoundsConnections(t *testing.T) {
	r := start(t, Options{MaxConnections: 2})
	dial := func() net.Conn {
		c, err := net.Dial("tcp", r.HTTPAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	alive := func(c net.Conn) bool {
		if _, err := c.Write([]byte("GET /healthz HTTP/1.1\r\nHost: m\r\n\r\n")); err != nil {
			return false
		}
		_ = c.SetReadDeadline(time.Now().Add(hangGuard))
		_, err := c.Read(make([]byte, 1))
		return err == nil
	}
	a, b := dial(), dial()
	if !alive(a) || !alive(b) {
		t.Fatal("connections within the bound are refused")
	}
	if alive(dial()) {
		t.Error("a connection beyond the bound is served")
	}
	if n := r.httpConns.refused.Load(); n != 1 {
		t.Errorf("counted %d", n)
	}
	_ = a.Close()
	for deadline := time.Now().Add(hangGuard); !alive(dial()); { // the server notices the close on its own time
		if time.Now().After(deadline) {
			t.Fatal("room does not come back")
		}
	}
}

func TestNew_NamesTheMissingOption(t *testing.T) {
	full := Options{Ingest: newFakeIngest(nil), Registry: &fakeRegistry{}, Snapshots: newFakeSnapshots(load.FleetReady)}
	cases := map[string]func(*Options){
		"Ingest":          func(o *Options) { o.Ingest = nil },
		"Registry":        func(o *Options) { o.Registry = nil },
		"Snapshots":       func(o *Options) { o.Snapshots = nil },
		"Grace":           func(o *Options) { o.Grace = -time.Second },
		"MaxMessageBytes": func(o *Options) { o.MaxMessageBytes = -1 },
	}
	for name, edit := range cases {
		o := full
		edit(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), "Options."+name) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	if _, err := New(full); err != nil {
		t.Error(err)
	}
}
