package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"
)

// profiler serves Go's profiles of this process. Whoever reads them sees addresses of engines and can slow the monitor
// down, so it listens on loopback only.
type profiler struct {
	listener net.Listener
	server   *http.Server
}

// newProfiler opens the listener; nothing is served before run. addr is host:port with a loopback host.
func newProfiler(ctx context.Context, addr string) (*profiler, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("pprof-listen is %q: want host:port: %w", addr, err)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.Unmap().IsLoopback() {
		return nil, fmt.Errorf("pprof-listen is %q: want a loopback address such as 127.0.0.1:6060; from elsewhere use a tunnel", addr)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("pprof-listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return &profiler{listener: l, server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}}, nil
}

// run serves until ctx ends. A profile that is being taken then is cut off.
func (p *profiler) run(ctx context.Context) error {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = p.server.Close()
	})
	err := p.server.Serve(p.listener)
	if !stop() {
		<-done
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve profiles on %s: %w", p.listener.Addr(), err)
}
