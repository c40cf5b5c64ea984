package drive

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"time"
)

// Engines is the HTTP side of engines that push: what registration asks them. Each has an address of its own, which is its
// identity; no requests come but a few for each lease.
type Engines struct {
	ranks   int
	server  *http.Server
	serving sync.WaitGroup

	// immutable after Listen
	urls []string

	mu      sync.Mutex
	started map[string]bool // guarded by mu: by host:port, who was told to report
	all     chan struct{}   // closed when all are
}

// ListenEngines opens an address for each engine and serves it: a port of the host, or on Linux, where the host is on
// loopback, an address of the loopback network with one port for all, so that thousands take one listener.
func ListenEngines(ctx context.Context, host string, n, ranks int) (*Engines, error) {
	e := &Engines{ranks: ranks, started: map[string]bool{}, all: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /server_info", e.info)
	mux.HandleFunc("POST /v1/start_reporting", e.start)
	e.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 5 * time.Second, ErrorLog: log.New(discard{}, "", 0)}
	listen := e.listenEach
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is4() && ip.IsLoopback() && runtime.GOOS == "linux" {
		listen = e.listenOnLoopback
	}
	if err := listen(ctx, host, n); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Engines) listenEach(ctx context.Context, host string, n int) error {
	for range n {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return fmt.Errorf("engine %d of %d: %w: raise the open-file limit or ask for fewer workers", len(e.urls)+1, n, err)
		}
		e.urls = append(e.urls, "http://"+l.Addr().String())
		e.serving.Go(func() { _ = e.server.Serve(l) })
	}
	return nil
}

// listenOnLoopback gives the engines the addresses from 127.1.0.0 on. Linux has all of them, and one listener hears them all.
func (e *Engines) listenOnLoopback(ctx context.Context, _ string, n int) error {
	if n > 1<<20 {
		return fmt.Errorf("%d engines: at most %d", n, 1<<20)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp4", "0.0.0.0:0")
	if err != nil {
		return err
	}
	port := l.Addr().(*net.TCPAddr).Port
	for i := range n {
		e.urls = append(e.urls, fmt.Sprintf("http://127.%d.%d.%d:%d", 1+i>>16, i>>8&255, i&255, port))
	}
	e.serving.Go(func() { _ = e.server.Serve(onLoopback{l}) })
	return nil
}

// onLoopback hangs up on whoever comes from elsewhere.
type onLoopback struct{ net.Listener }

func (l onLoopback) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || c.RemoteAddr().(*net.TCPAddr).IP.IsLoopback() {
			return c, err
		}
		_ = c.Close()
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// URLs returns the engines' addresses.
func (e *Engines) URLs() []string { return e.urls }

// Wait waits until every engine was told to report. The error says how many were.
func (e *Engines) Wait(ctx context.Context) error {
	select {
	case <-e.all:
		return nil
	case <-ctx.Done():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Errorf("%d of %d engines were told to report: %w", len(e.started), len(e.urls), context.Cause(ctx))
}

// Close closes every listener and connection.
func (e *Engines) Close() {
	_ = e.server.Close()
	e.serving.Wait()
}

// info answers what an engine without load sockets answers, cut down to what a monitor reads.
func (e *Engines) info(w http.ResponseWriter, _ *http.Request) {
	answer(w, map[string]any{"dp_size": e.ranks, "served_model_name": "bench", "disaggregation_mode": "null"})
}

// start grants what was asked for.
func (e *Engines) start(w http.ResponseWriter, r *http.Request) {
	var req struct {
		LeaseMs int64 `json:"lease_ttl_ms"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&req); err != nil {
		http.Error(w, `{"detail": "the body is not a registration"}`, http.StatusUnprocessableEntity)
		return
	}
	at := r.Context().Value(http.LocalAddrContextKey).(net.Addr).String()
	e.mu.Lock()
	if !e.started[at] {
		e.started[at] = true
		if len(e.started) == len(e.urls) {
			close(e.all)
		}
	}
	e.mu.Unlock()
	answer(w, map[string]any{"status": "reporting", "lease_ttl_ms": req.LeaseMs, "renew_after_ms": req.LeaseMs / 3})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the peer may have left
}
