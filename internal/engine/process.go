package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/loadmonitor/loadmonitor/reporter"
	"github.com/loadmonitor/loadmonitor/reporter/pub"
)

// smallBuffers are for thousands of connections that carry a message a second.
var smallBuffers = []grpc.DialOption{grpc.WithReadBufferSize(4 << 10), grpc.WithWriteBufferSize(8 << 10)}

// process is one life of an engine: its HTTP server and its reporter, on connections that can be reset all at once, or its
// load sockets instead of the reporter.
type process struct {
	server  *http.Server
	conns   *conns
	sockets *pub.Engine // nil in an engine that pushes
	logger  *slog.Logger
	stop    context.CancelFunc
	tasks   sync.WaitGroup
}

func (e *engine) launch(ctx context.Context, l net.Listener, open *conns, rep *reporter.Reporter, sockets *pub.Engine, newest *latest) *process {
	ctx, stop := context.WithCancel(ctx)
	p := &process{
		server: &http.Server{
			Handler:           e.handler(rep, newest),
			ReadHeaderTimeout: 5 * time.Second,
			IdleTimeout:       2 * time.Minute,
			MaxHeaderBytes:    16 << 10,
		},
		conns:   open,
		sockets: sockets,
		logger:  e.logger,
		stop:    stop,
	}
	p.tasks.Go(func() {
		err := p.server.Serve(trackedListener{l, p.conns})
		if !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			e.fail(fmt.Errorf("worker %d: %w", e.index, err))
		}
	})
	if rep != nil {
		p.tasks.Go(func() {
			if err := rep.Run(ctx); err != nil {
				e.fail(fmt.Errorf("worker %d: %w", e.index, err))
			}
		})
	}
	return p
}

// kill ends the process as the kernel ends one: every connection is reset and nothing is said.
func (p *process) kill() {
	p.conns.reset()
	p.shutdown()
}

// shutdown closes everything and waits until it is gone.
func (p *process) shutdown() {
	p.stop()
	p.server.Close()
	if p.sockets != nil {
		if err := p.sockets.Close(); err != nil {
			p.logger.Warn("load ports are not free again", "error", err)
		}
	}
	p.tasks.Wait()
}
