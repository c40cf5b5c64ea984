package rest

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// Case I4 and rule SNAP1: one version is one sequence of bytes.
func TestSnapshot_OneVersionIsOneBody(t *testing.T) {
	var entries []*load.Entry
	for i := range 100 {
		entries = append(entries, known(workerID(i), 2))
	}
	h := newHandler(t, newFleet(entries...))
	first := get(h, "GET", SnapshotPath)
	if first.Code != http.StatusOK || first.Header().Get("Content-Type") != "application/json" || first.Header().Get("Cache-Control") != "no-cache" {
		t.Fatalf("status %d, headers %v", first.Code, first.Header())
	}
	if n := first.Header().Get("Content-Length"); n != strconv.Itoa(first.Body.Len()) {
		t.Errorf("Content-Length %s of %d bytes", n, first.Body.Len())
	}
	if age := first.Header().Get("Snapshot-Age-Ms"); age != "250" {
		t.Errorf("Snapshot-Age-Ms is %q, want 250", age)
	}
	for range 50 {
		again := get(h, "GET", SnapshotPath)
		if again.Header().Get("ETag") != first.Header().Get("ETag") || !bytes.Equal(again.Body.Bytes(), first.Body.Bytes()) {
			t.Fatalf("body or ETag of one version differs: %s and %s", first.Header().Get("ETag"), again.Header().Get("ETag"))
		}
	}
	if n := h.renderer.count.Load(); n != 1 {
		t.Errorf("rendered %d times, want 1", n)
	}
}

func TestSnapshot_IfNoneMatch(t *testing.T) {
	h := newHandler(t, newFleet(known("w", 1)))
	for _, tt := range []struct {
		name    string
		headers []string
		want    int
	}{
		{"the tag", []string{"If-None-Match", `"e1-1"`}, 304},
		{"weak", []string{"If-None-Match", `W/"e1-1"`}, 304},
		{"in a list", []string{"If-None-Match", `"x", W/"y" ,"e1-1"`}, 304},
		{"in a second line", []string{"If-None-Match", `"x"`, "If-None-Match", `"e1-1"`}, 304},
		{"any", []string{"If-None-Match", `*`}, 304},
		{"older version", []string{"If-None-Match", `"e1-0"`}, 200},
		{"other epoch", []string{"If-None-Match", `"e2-1"`}, 200},
		{"without quotes", []string{"If-None-Match", `e1-1`}, 200},
		{"compressed tag for the plain body", []string{"If-None-Match", `"e1-1-gzip"`}, 200},
		{"compressed tag for the compressed body", []string{"If-None-Match", `"e1-1-gzip"`, "Accept-Encoding", "gzip"}, 304},
		{"plain tag for the compressed body", []string{"If-None-Match", `"e1-1"`, "Accept-Encoding", "gzip"}, 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, method := range []string{"GET", "HEAD"} {
				w := get(h, method, SnapshotPath, tt.headers...)
				if w.Code != tt.want {
					t.Errorf("%s: status %d, want %d", method, w.Code, tt.want)
				}
				if w.Header().Get("ETag") == "" || w.Header().Get("Vary") != "Accept-Encoding" {
					t.Errorf("%s: headers %v", method, w.Header())
				}
				if (method == "HEAD" || w.Code == 304) && w.Body.Len() != 0 {
					t.Errorf("%s: %d with %d bytes of body, want none", method, w.Code, w.Body.Len())
				}
			}
		})
	}
}

func TestSnapshot_AcceptEncoding(t *testing.T) {
	h := newHandler(t, newFleet(known("w", 1)))
	plain := get(h, "GET", SnapshotPath).Body.Bytes()
	for accept, want := range map[string]bool{
		"gzip": true, "GZIP": true, "deflate, gzip;q=0.5": true, "*": true, "br, *;q=0.1": true, "x-gzip": true, "gzip; q=1.0": true,
		"": false, "identity": false, "br": false, "gzip;q=0": false, "*, gzip;q=0": false, "gzip;q=0.5, identity": false,
		"gzip;q=x": false, "gzip;q=2": false, "gzip;q=NaN": false,
	} {
		w := get(h, "GET", SnapshotPath, "Accept-Encoding", accept)
		body := w.Body.Bytes()
		if got := w.Header().Get("Content-Encoding") == "gzip"; got != want {
			t.Errorf("%q: compressed %v, want %v", accept, got, want)
			continue
		}
		tag := `"e1-1"`
		if want {
			tag = `"e1-1-gzip"`
			z, err := gzip.NewReader(bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if body, err = io.ReadAll(z); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(body, plain) {
			t.Errorf("%q: body differs from the plain one", accept)
		}
		if w.Header().Get("ETag") != tag {
			t.Errorf("%q: ETag is %s, want %s", accept, w.Header().Get("ETag"), tag)
		}
		if n := w.Header().Get("Content-Length"); n != strconv.Itoa(w.Body.Len()) {
			t.Errorf("%q: Content-Length is %s of %d", accept, n, w.Body.Len())
		}
	}
}

func TestSnapshot_TagHoldsWhateverTheEpochHolds(t *testing.T) {
	f := newFleet()
	s := snapshot(7)
	s.Epoch = "a\",b c\n"
	f.put(s, 0)
	h := newHandler(t, f)
	tag := get(h, "GET", SnapshotPath).Header().Get("ETag")
	if strings.ContainsAny(strings.Trim(tag, `"`), "\", \n") {
		t.Fatalf("ETag is %q", tag)
	}
	if w := get(h, "GET", SnapshotPath, "If-None-Match", tag); w.Code != 304 {
		t.Errorf("status %d for the tag %q, want 304", w.Code, tag)
	}
}

// Case J4: a body of any size, here above every default limit of gRPC.
func TestSnapshot_LargeFleetIsOneBody(t *testing.T) {
	var entries []*load.Entry
	for i := range 1700 {
		entries = append(entries, known(workerID(i), 8))
	}
	server := httptest.NewServer(newHandler(t, newFleet(entries...)))
	defer server.Close()
	for _, compressed := range []bool{false, true} {
		client := &http.Client{Transport: &http.Transport{DisableCompression: !compressed}}
		resp, err := client.Get(server.URL + SnapshotPath)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		client.CloseIdleConnections()
		if err != nil || resp.StatusCode != http.StatusOK || len(body) < 8<<20 || !bytes.HasSuffix(body, []byte("]}]}\n")) {
			t.Errorf("compressed %v: status %d, %d bytes, %v: want 200 and the whole of more than 8 MiB", compressed, resp.StatusCode, len(body), err)
		}
	}
}

// Rule SNAP1 on the HTTP side: versions that come faster than the interval share one rendering, a quiet fleet is read fresh.
func TestSnapshot_RenderedAtMostOncePerInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(known("w", 1))
		h := newHandler(t, f)
		tag := func() string { return get(h, "GET", SnapshotPath).Header().Get("ETag") }
		if got := tag(); got != `"e1-1"` {
			t.Fatalf("first read is %s", got)
		}
		for range 19 { // versions 2 to 20, one each 5 ms
			time.Sleep(5 * time.Millisecond)
			f.publish(known("w", 1))
			if got := tag(); got != `"e1-1"` {
				t.Fatalf("within the interval: %s, want the rendered version 1", got)
			}
		}
		time.Sleep(5 * time.Millisecond)
		if got := tag(); got != `"e1-20"` {
			t.Errorf("after the interval: %s, want version 20", got)
		}
		time.Sleep(time.Second)
		f.publish(known("w", 1))
		if got := tag(); got != `"e1-21"` {
			t.Errorf("after a quiet time: %s, want the newest version at once", got)
		}
		if n := h.renderer.count.Load(); n != 3 {
			t.Errorf("rendered %d times, want 3", n)
		}
	})
}

func TestSnapshot_ConcurrentReadersSeeVersionsRise(t *testing.T) {
	f := newFleet(known("w", 1))
	h := newHandler(t, f, func(o *Options) { o.MinInterval = time.Microsecond })
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			bodies := map[string]string{}
			last := 0
			for range 200 {
				w := get(h, "GET", SnapshotPath)
				tag, body := w.Header().Get("ETag"), w.Body.String()
				if before, seen := bodies[tag]; seen && before != body {
					t.Errorf("two bodies of %s", tag)
				}
				bodies[tag] = body
				version, err := strconv.Atoi(strings.Trim(strings.TrimPrefix(tag, `"e1-`), `"`))
				if err != nil || version < last {
					t.Errorf("version %d after %d, %v", version, last, err)
				}
				last = version
			}
		})
	}
	for range 200 {
		f.publish(known("w", 1))
	}
	wg.Wait()
	for _, wait := h.renderer.latest(); wait > 0; _, wait = h.renderer.latest() { // the last rendering may have been slow
		time.Sleep(wait)
	}
	if got := get(h, "GET", SnapshotPath).Header().Get("ETag"); got != `"e1-201"` {
		t.Errorf("after all: %s, want version 201", got)
	}
}

// Case J3: a reader who leaves in the middle of a large body leaves nothing behind; one who stops reading is cut off.
func TestSnapshot_ReaderWhoLeavesOrStopsEndsTheAnswer(t *testing.T) {
	for _, leaves := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var entries []*load.Entry
			for i := range 100 {
				entries = append(entries, known(workerID(i), 8))
			}
			h := newHandler(t, newFleet(entries...))
			served := make(chan struct{})
			p := newPipes(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(served)
				h.ServeHTTP(w, r)
			}))
			conn := p.dial(t)
			io.WriteString(conn, "GET "+SnapshotPath+" HTTP/1.1\r\nHost: x\r\n\r\n")
			io.ReadFull(conn, make([]byte, 100_000))
			synctest.Wait()
			start := time.Now()
			if leaves {
				conn.Close()
			}
			<-served
			took := time.Since(start)
			if leaves && took != 0 {
				t.Errorf("answer went on for %v after the reader left", took)
			}
			if stalled := h.stalled.Load(); !leaves && (took != 10*time.Second || stalled != 1) {
				t.Errorf("answer went on for %v, %d stalled readers: want 10s and 1", took, stalled)
			}
		})
	}
}

// Case J5 without CORS, and the rules for methods and slashes.
func TestHandler_MethodsSlashesAndOrigins(t *testing.T) {
	h := newHandler(t, newFleet())
	mux := http.NewServeMux()
	h.Mount(mux)
	for _, tt := range []struct {
		method, target string
		status         int
		header, value  string
	}{
		{"GET", SnapshotPath, 200, "Content-Type", "application/json"},
		{"HEAD", SnapshotPath, 200, "Content-Type", "application/json"},
		{"HEAD", WatchPath, 200, "Content-Type", "application/x-ndjson"},
		{"GET", OpenAPIPath, 200, "Content-Type", "application/json"},
		{"HEAD", OpenAPIPath, 200, "Content-Type", "application/json"},
		{"OPTIONS", SnapshotPath, 405, "Allow", "GET, HEAD"},
		{"POST", SnapshotPath, 405, "Allow", "GET, HEAD"},
		{"DELETE", WatchPath, 405, "Allow", "GET, HEAD"},
		{"PUT", OpenAPIPath, 405, "Allow", "GET, HEAD"},
		{"GET", SnapshotPath + "/", 308, "Location", SnapshotPath},
		{"GET", WatchPath + "/?min_interval_ms=5", 308, "Location", WatchPath + "?min_interval_ms=5"},
		{"POST", SnapshotPath + "/", 405, "Allow", "GET, HEAD"},
		{"GET", SnapshotPath + "/x", 404, "", ""},
		{"GET", SnapshotPath + "//", 404, "", ""},
	} {
		for name, handler := range map[string]http.Handler{"handler": h, "mux": mux} {
			if name == "mux" && tt.status == 404 || strings.HasSuffix(tt.target, "//") && name == "mux" {
				continue // what is not mounted is not ours to answer
			}
			w := get(handler, tt.method, tt.target, "Origin", "http://evil.example", "Access-Control-Request-Method", "GET")
			if w.Code != tt.status || tt.header != "" && w.Header().Get(tt.header) != tt.value {
				t.Errorf("%s: %s %s: %d with %s %q, want %d with %q", name, tt.method, tt.target, w.Code, tt.header, w.Header().Get(tt.header), tt.status, tt.value)
			}
			for key := range w.Header() {
				if strings.HasPrefix(key, "Access-Control-") {
					t.Errorf("%s: %s %s: sends %s", name, tt.method, tt.target, key)
				}
			}
			if tt.method == "HEAD" && w.Body.Len() != 0 {
				t.Errorf("%s: HEAD %s: %d bytes of body", name, tt.target, w.Body.Len())
			}
		}
	}
}

func TestNew_RefusesWhatCannotWork(t *testing.T) {
	for _, o := range []Options{
		{},
		{Source: newFleet(), MinInterval: -1},
		{Source: newFleet(), StallLimit: -1},
		{Source: newFleet(), MaxWatchers: -1},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

func TestMetrics_CountWhatHappened(t *testing.T) {
	h := newHandler(t, newFleet(known("w", 1)))
	get(h, "GET", SnapshotPath)
	get(h, "GET", SnapshotPath, "If-None-Match", `*`)
	got := map[string]float64{}
	for _, m := range h.Metrics() {
		if m.Help == "" || m.Counter != strings.HasSuffix(m.Name, "_total") {
			t.Errorf("%s: help %q, counter %v", m.Name, m.Help, m.Counter)
		}
		m.Collect(func(v float64, labels ...load.Label) {
			key := m.Name
			for _, l := range labels {
				key += " " + l.Value
			}
			got[key] = v
		})
	}
	for key, want := range map[string]float64{
		"rest_snapshots_total body": 1, "rest_snapshots_total not_modified": 1, "rest_renders_total": 1, "rest_watchers": 0,
		"rest_watchers_refused_total": 0, "rest_stalled_total": 0, "rest_body_bytes": float64(len(h.renderer.newest.Load().body)),
	} {
		if v, there := got[key]; !there || v != want {
			t.Errorf("%s is %v (%v), want %v", key, v, there, want)
		}
	}
}
