package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"google.golang.org/grpc"
)

// Listen opens the listeners that were not given. After it, GRPCAddr and HTTPAddr say where. Run calls it when nobody
// did; calling it again does nothing. It must not be called at the same time as Run.
func (s *Server) Listen(ctx context.Context) error {
	if s.listening {
		return nil
	}
	grpcLis, httpLis := s.opts.GRPCListener, s.opts.HTTPListener
	if grpcLis == nil {
		l, err := ListenGRPC(ctx, s.opts.GRPCAddr, s.opts.AllowInsecure)
		if err != nil {
			return err
		}
		grpcLis = l
	}
	if httpLis == nil {
		l, err := ListenHTTP(ctx, s.opts.HTTPAddr, s.opts.AllowInsecure)
		if err != nil {
			return errors.Join(err, grpcLis.Close())
		}
		httpLis = l
	}
	s.grpcConns.Listener, s.httpConns.Listener = grpcLis, httpLis
	s.listening = true
	return nil
}

// GRPCAddr returns where gRPC is served. Listen must have returned nil.
func (s *Server) GRPCAddr() net.Addr { return s.grpcConns.Addr() }

// HTTPAddr returns where HTTP is served. Listen must have returned nil.
func (s *Server) HTTPAddr() net.Addr { return s.httpConns.Addr() }

// Run serves until ctx ends or a listener fails, then shuts down and returns after everything that it started has ended:
// nil when ctx ended. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	if s.ran.Swap(true) {
		return errors.New("server: Run was called before")
	}
	if err := s.Listen(ctx); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	var running sync.WaitGroup
	failed := make(chan error, 2)
	running.Go(func() {
		if err := s.grpc.Serve(s.grpcConns); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			failed <- fmt.Errorf("server: serve gRPC on %s: %w", s.GRPCAddr(), err)
		}
	})
	running.Go(func() {
		if err := s.http.Serve(s.httpConns); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("server: serve HTTP on %s: %w", s.HTTPAddr(), err)
		}
	})
	follow, stopFollowing := context.WithCancel(ctx)
	defer stopFollowing()
	running.Go(func() { s.ready.follow(follow, s.opts.Snapshots) })

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	s.shutdown()
	stopFollowing()
	running.Wait()
	s.httpHandlers.Wait() // no connection is accepted any more
	s.log.Info("stopped serving")
	return err
}

// shutdown ends everything that is open, in an order in which peers can follow (rule LIFE1): first the server says that
// it is not ready, then whoever waits is told that it is going, then connections may drain, and at the end of the grace
// period what is left is cut. HTTP is served until gRPC has drained, so that /readyz answers 503 meanwhile.
func (s *Server) shutdown() {
	s.ready.advance(closing)
	if s.opts.Snapshot != nil {
		s.opts.Snapshot.Shutdown()
	}
	if s.opts.REST != nil {
		s.opts.REST.Shutdown()
	}
	s.reports.open.close()

	grace, cancel := context.WithTimeout(context.Background(), s.opts.Grace)
	defer cancel()
	// GracefulStop alone would wait for peers that are frozen.
	stopped := make(chan struct{})
	cut := context.AfterFunc(grace, func() {
		defer close(stopped)
		s.grpc.Stop()
	})
	s.grpc.GracefulStop()
	if !cut() {
		<-stopped
	}
	if err := s.http.Shutdown(grace); err != nil {
		_ = s.http.Close()
	}
}
