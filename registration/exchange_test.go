package registration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// scripted is an engine that answers the requests of each connection with the given texts, one after the other, and then
// hangs up, or with hold waits for the other end to.
func scripted(t *testing.T, hold bool, texts ...string) (w *load.Worker, conns *atomic.Int32) {
	t.Helper()
	conns = new(atomic.Int32)
	addr := listen(t, func(c net.Conn) {
		conns.Add(1)
		in := bufio.NewReader(c)
		for _, text := range texts {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
		}
		if hold {
			_, _ = io.Copy(io.Discard, in)
		}
	})
	return &load.Worker{URL: "http://" + addr, Origin: addr}, conns
}

const (
	grant  = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
	stream = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
)

func kept(r *Registry) int {
	r.engines.idle.mu.Lock()
	defer r.engines.idle.mu.Unlock()
	return len(r.engines.idle.conns)
}

// What comes over a connection decides whether it is used again.
func TestExchange_WhenAConnectionIsKept(t *testing.T) {
	repeat := func(s string) []string { return []string{s, s, s} }
	for _, tt := range []struct {
		name  string
		texts []string
		want  outcome
		kept  bool
	}{
		{"a length", repeat(grant), granted, true},
		{"chunks", repeat(stream), granted, true},
		{"nothing", repeat("HTTP/1.1 204 No Content\r\n\r\n"), granted, true},
		{"a refusal without words", repeat("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), unsupported, true},
		{"a refusal with words", repeat("HTTP/1.1 422 No\r\nContent-Length: 2\r\n\r\nno"), unprocessed, true},
		{"words before", repeat("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + grant), granted, true},
		{"too many words before", repeat(strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 6) + grant), unreachable, false},
		{"words after", repeat(grant + "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"), granted, false},
		{"Connection: close", repeat(strings.Replace(grant, "\r\n", "\r\nConnection: close\r\n", 1)), granted, false},
		{"HTTP/1.0", repeat(strings.Replace(grant, "1.1", "1.0", 1)), granted, false},
		{"too much", repeat("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100_000)), unexpected, false},
		{"another protocol", repeat("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"), unexpected, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, conns := scripted(t, true, tt.texts...)
			r := mustNew(t, Options{Timeout: 10 * time.Second})
			defer r.engines.close()
			for i := range 3 {
				if a, _ := r.engines.start(t.Context(), w, "", renewal); a.outcome != tt.want {
					t.Fatalf("request %d: %+v", i, a)
				}
			}
			want := int32(3)
			if tt.kept {
				want = 1
			}
			if n := conns.Load(); n != want {
				t.Errorf("%d connections for 3 requests, want %d", n, want)
			}
		})
	}
}

// An engine that hangs up while nothing is under way, as most do after 5 s, costs no failure and no second request.
func TestExchange_EngineHangsUpOnAnIdleConnection(t *testing.T) {
	w, conns := scripted(t, false, grant)
	r := mustNew(t, Options{})
	defer r.engines.close()
	for range 3 {
		if a, _ := r.engines.start(t.Context(), w, "", renewal); a.outcome != granted {
			t.Fatalf("%+v", a)
		}
		r.engines.idle.mu.Lock()
		c := r.engines.idle.conns[w.URL].Conn
		r.engines.idle.mu.Unlock()
		for begin := time.Now(); c != nil && silent(c); time.Sleep(time.Millisecond) {
			if time.Since(begin) > 10*time.Second {
				t.Fatal("the end of the connection is not seen")
			}
		}
	}
	if n := conns.Load(); n != 3 {
		t.Errorf("%d connections, want 3", n)
	}
}

// What an engine says unasked is not the answer to the next request.
func TestExchange_UnaskedWordsAreNoAnswer(t *testing.T) {
	say := make(chan struct{})
	said := make(chan struct{})
	var conns atomic.Int32
	addr := listen(t, func(c net.Conn) {
		first := conns.Add(1) == 1
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, grant)
		if first {
			<-say
			_, _ = io.WriteString(c, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
			close(said)
		}
		_, _ = io.Copy(io.Discard, c)
	})
	w := &load.Worker{URL: "http://" + addr, Origin: addr}
	r := mustNew(t, Options{})
	defer r.engines.close()
	for i := range 2 {
		if a, _ := r.engines.start(t.Context(), w, "", renewal); a.outcome != granted {
			t.Fatalf("request %d: %+v", i, a)
		}
		if i == 0 {
			close(say)
			<-said // on loopback it has arrived
		}
	}
	if n := conns.Load(); n != 2 {
		t.Errorf("%d connections, want another one", n)
	}
}

// A request that is given up, before its answer or within it, leaves no connection behind.
func TestExchange_GivenUpRequestLeavesNoConnection(t *testing.T) {
	for name, text := range map[string]string{
		"before the answer": "", "in its header": "HTTP/1.1 200 OK\r\n", "in its body": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			asked, gone := make(chan struct{}, 2), make(chan struct{})
			addr := listen(t, func(c net.Conn) {
				_, _ = c.Read(make([]byte, 4096))
				_, _ = io.WriteString(c, grant)
				_, _ = c.Read(make([]byte, 4096)) // the kept connection is in use
				_, _ = io.WriteString(c, text)
				asked <- struct{}{}
				_, _ = io.Copy(io.Discard, c)
				close(gone)
			})
			w := &load.Worker{URL: "http://" + addr, Origin: addr}
			r := mustNew(t, Options{Timeout: time.Minute})
			defer r.engines.close()
			if a, _ := r.engines.start(t.Context(), w, "", renewal); a.outcome != granted || kept(r) != 1 {
				t.Fatalf("%+v, %d connections are kept", a, kept(r))
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-asked
				cancel()
			}()
			r.engines.start(ctx, w, "", renewal)
			<-gone
			if ctx.Err() == nil || kept(r) != 0 {
				t.Errorf("%d connections are kept", kept(r))
			}
		})
	}
}

// An engine that hangs up on a kept connection instead of answering is asked again once, and not when an answer had begun.
func TestExchange_AskedAgainOnceAndNotWithinAnAnswer(t *testing.T) {
	for _, tt := range []struct {
		begun string
		want  int32 // requests after the first one
	}{{"", 2}, {"H", 1}, {"HTTP/1.1 200 OK\r\n", 1}, {"HTTP/1.1 100 Continue\r\n\r\n", 1}} {
		var asked atomic.Int32
		addr := listen(t, func(c net.Conn) {
			in := bufio.NewReader(c)
			for {
				req, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				if asked.Add(1) > 1 {
					_, _ = io.WriteString(c, tt.begun)
					return
				}
				_, _ = io.WriteString(c, grant)
			}
		})
		w := &load.Worker{URL: "http://" + addr, Origin: addr}
		r := mustNew(t, Options{Timeout: 10 * time.Second})
		for i, want := range []outcome{granted, unreachable} {
			if a, _ := r.engines.start(t.Context(), w, "", renewal); a.outcome != want {
				t.Errorf("%q: request %d: %+v", tt.begun, i, a)
			}
		}
		if n := asked.Load() - 1; n != tt.want {
			t.Errorf("%q: asked %d times, want %d", tt.begun, n, tt.want)
		}
		r.engines.close()
	}
}

// An engine that stops answering on a kept connection is late and not away: it is not asked a second time.
func TestExchange_SilenceOnAKeptConnectionIsLate(t *testing.T) {
	w, conns := scripted(t, true, grant, "", "")
	r := mustNew(t, Options{Timeout: 10 * time.Second})
	defer r.engines.close()
	if a, _ := r.engines.start(t.Context(), w, "", renewal); a.outcome != granted {
		t.Fatalf("%+v", a)
	}
	r.engines.timing.timeout = 100 * time.Millisecond
	if a, _ := r.engines.start(t.Context(), w, "", renewal); a.outcome != timedOut {
		t.Errorf("%+v, want that it timed out", a)
	}
	if n := conns.Load(); n != 1 || kept(r) != 0 {
		t.Errorf("%d connections, %d kept; want one and none", n, kept(r))
	}
}

// A connection that is kept is a socket and no more.
func TestExchange_NoGoroutineForAnIdleConnection(t *testing.T) {
	const engines = 200
	w, conns := scripted(t, true, grant)
	r := mustNew(t, Options{})
	defer r.engines.close()
	before := runtime.NumGoroutine()
	for i := range engines {
		// The same engine under many names: what is kept goes by the URL.
		other := &load.Worker{URL: fmt.Sprintf("%s/%d", w.URL, i), Origin: w.Origin}
		if a, _ := r.engines.start(t.Context(), other, "", renewal); a.outcome != granted {
			t.Fatalf("%+v", a)
		}
	}
	if n := conns.Load(); n != engines || kept(r) != engines {
		t.Fatalf("%d connections, %d kept", n, kept(r))
	}
	if n := runtime.NumGoroutine() - before - engines; n > engines/10 {
		t.Errorf("%d goroutines beside those of the engines", n)
	}
}
