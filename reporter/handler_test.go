package reporter

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
)

const goodBody = `{"ip": "127.0.0.1", "port": 50061, "report_interval_ms": 1000, "lease_ttl_ms": 15000}`

// post calls the handler as a monitor that knows the engine as 127.0.0.2:30000.
func post(h http.Handler, body string, change func(*http.Request)) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodPost, "http://127.0.0.2:30000"+Path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	if change != nil {
		change(req)
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	return rec
}

// Case J6: what is not the expected object is refused, and null or negative is never read as 0.
func TestHandler_BodyIsStrict(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		status     int
		names      string // what the refusal names
	}{
		{"good", goodBody, 200, ""},
		{"other order and space", "\n{\"lease_ttl_ms\":1,\"report_interval_ms\":1,\"port\":65535,\"ip\":\"::1\"}\n", 200, ""},
		{"empty", "", 422, "JSON"},
		{"not JSON", "ip=127.0.0.1", 422, "JSON"},
		{"cut short", goodBody[:40], 422, "JSON"},
		{"array", "[" + goodBody + "]", 422, "object"},
		{"null", "null", 422, "object"},
		{"trailing text", goodBody + "x", 422, "after"},
		{"second object", goodBody + goodBody, 422, "after"},
		{"empty object", "{}", 422, "ip"},
		{"unknown field", strings.Replace(goodBody, "{", `{"zone": "z1", `, 1), 422, `zone`},
		{"field in other case", strings.Replace(goodBody, `"port"`, `"Port"`, 1), 422, "port"},
		{"field twice", strings.Replace(goodBody, "{", `{"port": 50062, `, 1), 422, "twice"},
		{"null ip", strings.Replace(goodBody, `"127.0.0.1"`, "null", 1), 422, "ip"},
		{"ip as number", strings.Replace(goodBody, `"127.0.0.1"`, "2130706433", 1), 422, "ip"},
		{"ip is a name", strings.Replace(goodBody, "127.0.0.1", "localhost", 1), 422, "ip"},
		{"ip in brackets", strings.Replace(goodBody, "127.0.0.1", "[::1]", 1), 422, "ip"},
		{"ip with port", strings.Replace(goodBody, "127.0.0.1", "127.0.0.1:1", 1), 422, "ip"},
		{"wildcard ip", strings.Replace(goodBody, "127.0.0.1", "0.0.0.0", 1), 422, "ip"},
		{"null port", strings.Replace(goodBody, "50061", "null", 1), 422, "port"},
		{"port 0", strings.Replace(goodBody, "50061", "0", 1), 422, "port"},
		{"port 65536", strings.Replace(goodBody, "50061", "65536", 1), 422, "port"},
		{"port in quotes", strings.Replace(goodBody, "50061", `"50061"`, 1), 422, "port"},
		{"port as fraction", strings.Replace(goodBody, "50061", "50061.0", 1), 422, "port"},
		{"port as exponent", strings.Replace(goodBody, "50061", "5e4", 1), 422, "port"},
		{"port true", strings.Replace(goodBody, "50061", "true", 1), 422, "port"},
		{"null interval", strings.Replace(goodBody, ": 1000", ": null", 1), 422, "report_interval_ms"},
		{"interval 0", strings.Replace(goodBody, ": 1000", ": 0", 1), 422, "report_interval_ms"},
		{"negative lease", strings.Replace(goodBody, "15000", "-15000", 1), 422, "lease_ttl_ms"},
		{"null lease", strings.Replace(goodBody, "15000", "null", 1), 422, "lease_ttl_ms"},
		{"lease beyond 64 bits", strings.Replace(goodBody, "15000", "99999999999999999999", 1), 422, "lease_ttl_ms"},
		{"lease beyond the bound", strings.Replace(goodBody, "15000", "9223372036854775807", 1), 422, "lease_ttl_ms"},
		{"deep nesting", strings.Repeat("[", 10_000), 422, ""},
		{"deep nesting in a field", `{"ip": ` + strings.Repeat("[", 12_000), 422, ""},
		{"too large", strings.Repeat(" ", maxBody) + goodBody, 413, "larger"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &monitor{}
				m.start(t)
				r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
				rec := post(r.Handler(), tc.body, nil)
				if rec.Code != tc.status {
					t.Fatalf("status %d %s, want %d", rec.Code, rec.Body, tc.status)
				}
				if n := len(r.Stats().Targets); (n == 1) != (tc.status == 200) {
					t.Errorf("%d targets", n)
				}
				if tc.status == 200 {
					return
				}
				var refusal struct{ Detail string }
				if err := json.Unmarshal(rec.Body.Bytes(), &refusal); err != nil || !strings.Contains(refusal.Detail, tc.names) || refusal.Detail == "" {
					t.Errorf("refusal %q (%v), want one that names %q", rec.Body, err, tc.names)
				}
				if len(refusal.Detail) > 300 {
					t.Errorf("refusal of %d bytes echoes too much", len(refusal.Detail))
				}
			})
		})
	}
}

func TestHandler_GrantsALeaseAndTellsWhenToRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.start(t)
		r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
		for _, word := range []string{"registered", "renewed"} {
			rec := post(r.Handler(), goodBody, nil)
			want := fmt.Sprintf(`{"status":"%s","lease_ttl_ms":15000,"renew_after_ms":5000}`, word)
			if got := strings.TrimSpace(rec.Body.String()); got != want || rec.Header().Get("Content-Type") != "application/json" {
				t.Errorf("answer %s (%s), want %s", got, rec.Header().Get("Content-Type"), want)
			}
		}
	})
}

// The address of reports is the one under which the monitor reached us: scheme and Host, made canonical.
func TestHandler_WorkerAddressComesFromHost(t *testing.T) {
	for _, tc := range []struct {
		name, host string
		status     int
		want       string
	}{
		{"name", "W1.Pool:30000", 200, "http://w1.pool:30000"},
		{"IPv6", "[2001:DB8:0::5]:30000", 200, "http://[2001:db8::5]:30000"},
		{"no port", "w1.pool", 200, "http://w1.pool:80"},
		{"empty", "", 400, ""},
		{"port out of range", "w1.pool:70000", 400, ""},
		{"user", "admin@w1.pool:30000", 400, ""},
		{"path", "w1.pool:30000/x", 400, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &monitor{}
				m.start(t)
				r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
				rec := post(r.Handler(), goodBody, func(req *http.Request) {
					req.Host = tc.host
					req.Header.Set("X-Forwarded-Host", "elsewhere:1")
					req.Header.Set("Forwarded", "host=elsewhere:1")
				})
				if rec.Code != tc.status {
					t.Fatalf("status %d %s, want %d", rec.Code, rec.Body, tc.status)
				}
				synctest.Wait()
				if tc.status == 200 {
					if got := m.last(t).Worker.WorkerAddr; got != tc.want {
						t.Errorf("worker address %s, want %s", got, tc.want)
					}
				}
			})
		})
	}
}

func TestHandler_Statuses(t *testing.T) {
	bearer := func(token string) func(*http.Request) {
		return func(req *http.Request) { req.Header.Set("Authorization", token) }
	}
	for _, tc := range []struct {
		name   string
		opts   Options
		change func(*http.Request)
		status int
		names  string
	}{
		{"no key wanted", Options{}, nil, 200, ""},
		{"no key wanted, one sent", Options{}, bearer("Bearer whatever"), 200, ""},
		{"key missing", Options{AdminKey: "sentinel"}, nil, 401, "admin key"},
		{"key wrong", Options{AdminKey: "sentinel"}, bearer("Bearer sentine1"), 401, "admin key"},
		{"key in another scheme", Options{AdminKey: "sentinel"}, bearer("Basic sentinel"), 401, "admin key"},
		{"key right", Options{AdminKey: "sentinel"}, bearer("Bearer sentinel"), 200, ""},
		{"key right, scheme in lower case", Options{AdminKey: "sentinel"}, bearer("bearer sentinel"), 200, ""},
		{"closed without a key", Options{RequireAdminKey: true}, bearer("Bearer whatever"), 403, "start the engine with one"},
		{"closed with a key", Options{RequireAdminKey: true, AdminKey: "sentinel"}, bearer("Bearer sentinel"), 200, ""},
		{"GET", Options{}, func(req *http.Request) { req.Method = http.MethodGet }, 405, "POST"},
		{"text", Options{}, func(req *http.Request) { req.Header.Set("Content-Type", "text/plain") }, 422, "application/json"},
		{"JSON with charset", Options{}, func(req *http.Request) { req.Header.Set("Content-Type", "application/json; charset=utf-8") }, 200, ""},
		{"no content type", Options{}, func(req *http.Request) { req.Header.Del("Content-Type") }, 200, ""},
		{"announced too large", Options{}, func(req *http.Request) { req.ContentLength = 1 << 30 }, 413, "larger"},
		{"owned by another origin", Options{}, func(req *http.Request) { req.Host = "127.0.0.3:30000" }, 409, "127.0.0.2:30000"},
		{"too many targets", Options{MaxTargets: 1}, func(req *http.Request) {
			req.Body = io.NopCloser(strings.NewReader(strings.Replace(goodBody, "50061", "50062", 1)))
		}, 429, "50062"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &monitor{}
				m.start(t)
				tc.opts.Sample = idle
				tc.opts.DialOptions = []grpc.DialOption{m.dial()}
				r := run(t, tc.opts)
				mustStart(t, r, request())
				rec := post(r.Handler(), goodBody, tc.change)
				if rec.Code != tc.status || !strings.Contains(rec.Body.String(), tc.names) {
					t.Errorf("%d %s, want %d with %q", rec.Code, rec.Body, tc.status, tc.names)
				}
				if strings.Contains(rec.Body.String(), "sentinel") {
					t.Errorf("answer tells the key: %s", rec.Body)
				}
			})
		})
	}
}

func TestHandler_NotRunningIs503(t *testing.T) {
	r, err := New(Options{Sample: idle})
	if err != nil {
		t.Fatal(err)
	}
	if rec := post(r.Handler(), goodBody, nil); rec.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d, want 503", rec.Code)
	}
}

// Case J6: an endless body is cut long before it is read.
func TestHandler_EndlessBodyIsCut(t *testing.T) {
	r, err := New(Options{Sample: idle})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r.Handler())
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: w1:1\r\nTransfer-Encoding: chunked\r\n\r\n", Path)
	written := make(chan int, 1)
	go func() {
		total := 0
		chunk := []byte("1000\r\n" + strings.Repeat("[", 4096) + "\r\n")
		for total < 1<<30 {
			n, err := conn.Write(chunk)
			total += n
			if err != nil {
				break
			}
		}
		written <- total
	}()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d, want 413", res.StatusCode)
	}
	// The server closes; what was written beyond that sits in the sockets' buffers.
	if n := <-written; n >= 1<<30 {
		t.Errorf("the server took %d bytes", n)
	}
}

// pipeListener hands out connections that live inside a bubble.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { close(l.done); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// Case J6: a body of one byte per ten seconds is cut by time.
func TestHandler_SlowBodyIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, Options{Sample: idle})
		listener := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
		server := &http.Server{Handler: r.Handler()}
		go server.Serve(listener)
		defer server.Close()
		conn, far := net.Pipe()
		var writer sync.WaitGroup
		defer writer.Wait()
		defer conn.Close()
		listener.conns <- far
		begun := time.Now()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: w1:1\r\nContent-Length: %d\r\n\r\n", Path, len(goodBody))
		writer.Go(func() {
			for i := range goodBody {
				if _, err := conn.Write([]byte(goodBody[i : i+1])); err != nil {
					return
				}
				time.Sleep(10 * time.Second)
			}
		})
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusRequestTimeout {
			t.Errorf("status %d, want 408", res.StatusCode)
		}
		if d := time.Since(begun); d > bodyTimeout+time.Second {
			t.Errorf("cut after %v, want %v", d, bodyTimeout)
		}
		if n := len(r.Stats().Targets); n != 0 {
			t.Errorf("%d targets of half a body", n)
		}
	})
}

// Case M4: posts for names that never stream leave nothing behind.
func TestHandler_ManyNamesThatNeverStreamStayBounded(t *testing.T) {
	r, err := New(Options{Sample: idle, DialOptions: []grpc.DialOption{
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody is there") }),
	}})
	if err != nil {
		t.Fatal(err)
	}
	runReporter(t, r)
	h := r.Handler()
	body := strings.Replace(goodBody, "15000", "3600000", 1)       // no lease ends meanwhile
	for post(h, body, nil).Code == http.StatusServiceUnavailable { // Run is still beginning
		runtime.Gosched()
	}
	heap := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := heap()
	accepted := 1
	for i := range 5_000 {
		ip := fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255)
		rec := post(h, strings.Replace(body, "127.0.0.1", ip, 1), func(req *http.Request) { req.Host = fmt.Sprintf("w%d:1", i) })
		switch rec.Code {
		case http.StatusOK:
			accepted++
		case http.StatusTooManyRequests:
		default:
			t.Fatalf("status %d %s", rec.Code, rec.Body)
		}
	}
	if accepted != DefaultMaxTargets || len(r.Stats().Targets) != DefaultMaxTargets {
		t.Errorf("accepted %d, %d targets, bound is %d", accepted, len(r.Stats().Targets), DefaultMaxTargets)
	}
	if grown := int64(heap()) - int64(before); grown > 20<<20 {
		t.Errorf("heap grew by %d bytes", grown)
	}
}

// Real sockets from the POST to the report.
func TestHandler_RegistrationOverRealSocketsLeadsToAReport(t *testing.T) {
	reports := make(chan string, 16)
	target := serveMonitor(t, reports)
	r, err := New(Options{Sample: idle})
	if err != nil {
		t.Fatal(err)
	}
	runReporter(t, r)
	server := httptest.NewServer(r.Handler())
	defer server.Close()
	body := fmt.Sprintf(`{"ip": %q, "port": %d, "report_interval_ms": 20, "lease_ttl_ms": 60000}`, target.Addr(), target.Port())
	for {
		res, err := http.Post(server.URL, "application/json", bytes.NewBufferString(body))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			break
		}
		if res.StatusCode != http.StatusServiceUnavailable { // Run is still beginning
			t.Fatalf("status %d", res.StatusCode)
		}
	}
	for range 3 {
		if got := <-reports; got != server.URL {
			t.Errorf("report of %s, want %s", got, server.URL)
		}
	}
}
