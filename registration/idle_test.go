package registration

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// filesOf says how many files are open and may be.
func filesOf(open, limit int) func() (int, int) {
	return func() (int, int) { return open, limit }
}

// ended reports whether the other end of a pipe has been closed.
func ended(t *testing.T, c net.Conn) bool {
	t.Helper()
	switch err := c.SetReadDeadline(time.Now()); err {
	case nil:
		return false
	case io.ErrClosedPipe:
		return true
	default:
		t.Fatal(err)
		return false
	}
}

func TestIdle_ConnectionsThatNobodyTakesAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newIdle(30*time.Second, filesOf(10, 1000))
		ours, theirs := net.Pipe()
		p.put("http://w:1", ours)
		time.Sleep(29 * time.Second)
		if got := p.take("http://w:1"); got != ours {
			t.Fatal("the connection is gone before its time")
		}
		p.put("http://w:1", ours)
		time.Sleep(29 * time.Second)
		if ended(t, theirs) {
			t.Error("the connection was closed although it was used again")
		}
		time.Sleep(6 * time.Second)
		if !ended(t, theirs) || p.take("http://w:1") != nil {
			t.Error("the connection is kept after its time")
		}
	})
}

func TestIdle_OneForEachEngine(t *testing.T) {
	p := newIdle(time.Minute, filesOf(10, 1000))
	first, _ := net.Pipe()
	second, theirs := net.Pipe()
	p.put("http://w:1", first)
	p.put("http://w:1", second)
	if !ended(t, theirs) || p.take("http://w:1") != first {
		t.Error("a second connection is kept for an engine")
	}
	p.put("http://w:1", first)
	p.close()
	third, theirs := net.Pipe()
	p.put("http://w:1", third)
	if !ended(t, theirs) {
		t.Error("a connection is kept after the end")
	}
}

// counted is a connection whose file is among those that are open.
type counted struct {
	net.Conn
	open *atomic.Int64
}

func (c counted) Close() error {
	c.open.Add(-1)
	return c.Conn.Close()
}

// A quarter of the files stays free, whoever opened the others. Once those are closed there is room again.
func TestIdle_KeepsWhatTheFileLimitAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int64
		p := newIdle(time.Hour, func() (int, int) { return int(open.Load()), 100 })
		count := func() (kept int) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.conns)
		}
		fill := func() {
			for i := range 100 {
				ours, _ := net.Pipe()
				open.Add(1)
				p.put(fmt.Sprint(i), counted{ours, &open})
			}
		}
		others := int64(0)
		for _, tt := range []struct {
			others     int64
			kept, then int // after a sweep, and after more were put
		}{{10, 0, 65}, {25, 50, 50}, {80, 0, 0}, {99, 0, 0}, {40, 0, 35}} {
			open.Add(tt.others - others)
			others = tt.others
			time.Sleep(sweepEvery)
			synctest.Wait()
			if got := count(); got != tt.kept {
				t.Errorf("%d connections are kept beside %d other files, want %d", got, others, tt.kept)
			}
			if fill(); count() != tt.then {
				t.Errorf("%d connections are kept beside %d other files, want %d of any number", count(), others, tt.then)
			}
		}
		p.close()
		if got := open.Load(); got != others {
			t.Errorf("%d files are open, %d of them others", got, others)
		}
	})
}

// Where nobody says how many files are open, others are taken to have half.
func TestIdle_KeepsAQuarterWhereFilesAreNotCounted(t *testing.T) {
	p := newIdle(time.Hour, filesOf(0, 100))
	defer p.close()
	for i := range 100 {
		ours, _ := net.Pipe()
		p.put(fmt.Sprint(i), ours)
	}
	if got := len(p.conns); got != 26 { // the one that is put is not counted yet
		t.Errorf("%d connections are kept", got)
	}
}

func TestOpenFiles_CountsThemAndKnowsTheLimit(t *testing.T) {
	open, limit := openFiles()
	if limit < 3 || limit < open {
		t.Fatalf("%d files of %d", open, limit)
	}
	if open == 0 {
		t.Skip("this kernel does not count open files: Linux does since 6.2")
	}
	if open < 3 {
		t.Fatalf("%d files of %d", open, limit)
	}
	var listeners []net.Listener
	for range 50 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		listeners = append(listeners, l)
	}
	listeners[0].Close() // a gap among the numbers
	if now, _ := openFiles(); now < open+45 {
		t.Errorf("%d files after 50 more were opened, %d before", now, open)
	}
}

// A connection that speaks TLS is kept and looked at as any other.
func TestIdle_SilenceOfTLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	defer srv.Close()
	c, err := tls.Dial("tcp", srv.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	kept := 0
	for i := range 2 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := over(t.Context(), c, req, func(net.Conn) { kept++ })
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(resp.Body); string(text) != "{}" || err != nil {
			t.Fatal(string(text), err)
		}
		_ = resp.Body.Close()
		if kept != i+1 || !silent(c) {
			t.Fatalf("kept %d times after %d answers", kept, i+1)
		}
	}
	srv.CloseClientConnections()
	for begin := time.Now(); silent(c); time.Sleep(time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Fatal("the end of the connection is not seen")
		}
	}
}

// heldBack is a connection that sends all at once what it was given while held.
type heldBack struct {
	net.Conn
	held    bool
	pending []byte
}

func (c *heldBack) Write(p []byte) (int, error) {
	if c.held {
		c.pending = append(c.pending, p...)
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *heldBack) release() {
	c.held = false
	_, _ = c.Conn.Write(c.pending)
}

// What came with the last answer, in a TLS record of its own, is seen although it is not in the socket any more.
func TestIdle_UnaskedWordsOverTLS(t *testing.T) {
	for _, after := range []string{"", "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"} {
		srv := httptest.NewTLSServer(http.NotFoundHandler())
		certificates := srv.TLS.Certificates
		srv.Close()
		addr := listen(t, func(c net.Conn) {
			h := &heldBack{Conn: c}
			s := tls.Server(h, &tls.Config{Certificates: certificates})
			_, _ = s.Read(make([]byte, 4096))
			h.held = true
			_, _ = io.WriteString(s, grant)
			_, _ = io.WriteString(s, after)
			h.release()
			_, _ = io.Copy(io.Discard, s)
		})
		c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+addr, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := over(t.Context(), c, req, func(net.Conn) {})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if silent(c) != (after == "") {
			t.Errorf("silent is %v although the engine said %q", silent(c), after)
		}
	}
}
