package registration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// settled waits until every worker has an answer, or has none for good reason.
func settled(t *testing.T, r *Registry, done func([]load.Registration) bool) []load.Registration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if all := r.Registrations(); done(all) {
			return all
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not settled: %+v", r.Registrations())
		case <-tick.C:
		}
	}
}

func answered(all []load.Registration) bool {
	for _, reg := range all {
		if reg.State == load.RegistrationPending {
			return false
		}
	}
	return len(all) > 0
}

// listen opens a raw TCP server that handles each connection with serve.
func listen(t *testing.T, serve func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func TestSockets_EngineGrantsOverRealHTTP(t *testing.T) {
	e := &fakeEngine{key: "secret"}
	srv := httptest.NewServer(e)
	defer srv.Close()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := mustNew(t, Options{Static: []Spec{{URL: srv.URL, TokenFile: key}}})
	start(t, r)
	settled(t, r, func(all []load.Registration) bool { return len(all) == 1 && all[0].State == load.RegistrationLeased })
	p := e.seen()[0]
	if p.ip != "127.0.0.1" || p.port != 50061 || p.host != strings.TrimPrefix(srv.URL, "http://") {
		t.Errorf("request %+v", p)
	}
}

// Case K1: one engine never answers, one answers a byte a second, one redirects to itself. The others are registered as
// if those did not exist, and no answer is read without bound.
func TestSockets_HungEnginesDelayNobody(t *testing.T) {
	e := &fakeEngine{}
	var specs []Spec
	for range 47 {
		srv := httptest.NewServer(e)
		defer srv.Close()
		specs = append(specs, Spec{URL: srv.URL})
	}
	silent := listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	dripping := listen(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
		_, _ = io.Copy(io.Discard, c)
	})
	var hits atomic.Int32
	loop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer loop.Close()
	specs = append(specs, Spec{ID: "silent", URL: silent}, Spec{ID: "dripping", URL: dripping}, Spec{ID: "loop", URL: loop.URL})
	r := mustNew(t, Options{Static: specs, MaxPosts: 4, Timeout: 500 * time.Millisecond})
	stop := start(t, r)
	// On a busy machine a live engine may need a second try, so what counts is where everybody ends.
	want := map[string]string{
		"silent":   "the engine does not answer in time",
		"dripping": "the engine does not answer in time",
		"loop":     "HTTP 307: redirects are not followed: configure the engine's final address",
	}
	settled(t, r, func(all []load.Registration) bool {
		for _, reg := range all {
			if reg.Reason != want[reg.Worker.ID] || (reg.Reason == "") != (reg.State == load.RegistrationLeased) {
				return false
			}
		}
		return len(all) == 50
	})
	stop()
	if hits.Load() > 5 {
		t.Errorf("%d requests at the engine that redirects to itself", hits.Load())
	}
}

// Case N1: whatever a peer sends back, our token included, nothing of it is shown.
func TestSockets_HostilePeersAreNotQuoted(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("sentinel-3"), 0o600); err != nil {
		t.Fatal(err)
	}
	say := func(s string) string {
		return listen(t, func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, s)
		})
	}
	specs := []Spec{
		{ID: "echo", URL: listen(t, func(c net.Conn) { _, _ = io.Copy(c, c) })},
		{ID: "status line", URL: say("sentinel-1 sentinel-2\r\n\r\n")},
		{ID: "header", URL: say("HTTP/1.1 200 OK\r\nsentinel-1\r\n\r\n")},
		{ID: "status text", URL: say("HTTP/1.1 418 sentinel-1\r\nContent-Length: 0\r\n\r\n")},
		{ID: "body", URL: say("HTTP/1.1 422 no\r\nContent-Length: 12\r\n\r\n\"sentinel-1\"")},
		{ID: "length", URL: say("HTTP/1.1 200 OK\r\nContent-Length: sentinel-1\r\n\r\n")},
		{ID: "chunk", URL: say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nsentinel-1\r\n")},
		{ID: "location", URL: say("HTTP/1.1 302 x\r\nLocation: http://sentinel-1/\r\nContent-Length: 0\r\n\r\n")},
		{ID: "long header", URL: say("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("sentinel-1", 10_000) + "\r\n\r\n")},
		{ID: "long body", URL: say("HTTP/1.1 200 OK\r\n\r\n\"" + strings.Repeat("sentinel-1", 100_000) + "\"")},
		{ID: "grant", URL: say("HTTP/1.1 200 OK\r\n\r\n{\"status\":\"sentinel-1\",\"lease_ttl_ms\":\"sentinel-2\"}")},
		{ID: "gone", URL: say("")},
		{ID: "not https", URL: "https://" + say("HTTP/1.1 400 sentinel-1\r\n\r\n")},
	}
	for i := range specs {
		specs[i].TokenFile, specs[i].Role, specs[i].Transport = key, load.RoleRegular, load.TransportPush
	}
	var log, shown bytes.Buffer
	s := newSink()
	r := mustNew(t, Options{Sink: s, Static: specs, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	stop := start(t, r)
	all := settled(t, r, func(all []load.Registration) bool {
		return answered(all) && slices.ContainsFunc(all, func(reg load.Registration) bool { return reg.State == load.RegistrationLeased })
	})
	stop()
	for _, reg := range all {
		fmt.Fprintln(&shown, reg, s.note(reg.Worker.ID))
		if (reg.State == load.RegistrationLeased) != (reg.Worker.ID == "grant") || (reg.Reason == "") != (reg.Worker.ID == "grant") {
			t.Errorf("%s: state %d, reason %q", reg.Worker.ID, reg.State, reg.Reason)
		}
	}
	for _, m := range r.Metrics() {
		m.Collect(func(v float64, labels ...load.Label) { fmt.Fprintln(&shown, m.Name, m.Help, v, labels) })
	}
	if text := shown.String() + log.String(); strings.Contains(text, "sentinel") {
		t.Errorf("a sentinel shows in\n%s", text)
	}
}

func TestSockets_WhyThereIsNoConnection(t *testing.T) {
	tls := httptest.NewTLSServer(&fakeEngine{})
	tls.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	defer tls.Close()
	plain := httptest.NewServer(&fakeEngine{})
	defer plain.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0") // after the servers, so that none of them gets its port
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	l.Close()
	for _, tt := range []struct{ name, url, want string }{
		{"closed port", closed, "connection refused"},
		{"unknown name", "no-such-host.invalid:1", "the host name"},
		{"untrusted certificate", tls.URL, "the engine's certificate is not trusted"},
		{"https to a plain port", strings.Replace(plain.URL, "http:", "https:", 1), "check whether the engine speaks https"},
		{"documentation address", "192.0.2.1:1", "the gRPC listener 127.0.0.1:50061 is on loopback"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSink()
			r := mustNew(t, Options{Sink: s, Timeout: 5 * time.Second, Static: []Spec{{ID: "w", URL: tt.url, Role: load.RoleRegular, Transport: load.TransportPush}}})
			if tt.name == "documentation address" {
				// Nothing is dialled: the way there is all that is asked for.
				r.engines.advertise.route = routed("10.9.0.1", "192.0.2.1")
			}
			stop := start(t, r)
			all := settled(t, r, answered)
			stop()
			if !strings.Contains(all[0].Reason, tt.want) || s.note("w") != all[0].Reason {
				t.Errorf("reason %q, note %q; want %q", all[0].Reason, s.note("w"), tt.want)
			}
		})
	}
}

// An engine that closes an idle connection just when a renewal is written must not cost a failure: the renewal is sent
// again on a new connection.
func TestSockets_ClosedIdleConnectionIsNoFailure(t *testing.T) {
	var conns atomic.Int32
	addr := listen(t, func(c net.Conn) {
		// One answer per connection; then the next request is met by a close, without a word of it before.
		conns.Add(1)
		buf := make([]byte, 4096)
		_, _ = c.Read(buf)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		_, _ = c.Read(buf)
	})
	r := mustNew(t, Options{})
	w := load.Worker{URL: "http://" + addr, Origin: addr}
	for range 5 {
		if a, _ := r.engines.start(t.Context(), &w, "", renewal); a.outcome != granted {
			t.Fatalf("%+v", a)
		}
	}
	r.engines.close()
	if n := conns.Load(); n != 5 {
		t.Errorf("%d connections, want 5", n)
	}
}

func TestSockets_ConnectionIsKeptForAddressesAndNotForNames(t *testing.T) {
	for _, tt := range []struct {
		host string
		want int32
	}{{"127.0.0.1", 1}, {"localhost", 3}} {
		var conns atomic.Int32
		srv := httptest.NewUnstartedServer(&fakeEngine{})
		srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				conns.Add(1)
			}
		}
		srv.Start()
		_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
		origin := tt.host + ":" + port
		r := mustNew(t, Options{})
		for range 3 {
			if a, _ := r.engines.start(t.Context(), &load.Worker{URL: "http://" + origin, Origin: origin}, "", renewal); a.outcome != granted {
				t.Fatalf("%s: %+v", tt.host, a)
			}
		}
		r.engines.close()
		srv.Close()
		if n := conns.Load(); n != tt.want {
			t.Errorf("%s: %d connections for 3 requests, want %d", tt.host, n, tt.want)
		}
	}
}

// An engine that switches protocols and keeps the connection open is refused like any other wrong answer: it holds up
// neither its own loop nor the end of the registry.
func TestSockets_SwitchingProtocolsIsNoAnswer(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	addr := listen(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		<-release
	})
	r := mustNew(t, Options{Static: []Spec{{URL: addr, Role: load.RoleRegular, Transport: load.TransportPush}}})
	stop := start(t, r)
	all := settled(t, r, answered)
	if all[0].State != load.RegistrationRefused || all[0].LastHTTPStatus != http.StatusSwitchingProtocols {
		t.Errorf("state %d with status %d: %q, want refused with 101", all[0].State, all[0].LastHTTPStatus, all[0].Reason)
	}
	stop()
}
