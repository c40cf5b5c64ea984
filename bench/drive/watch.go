package drive

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
)

// Readers are watchers that read frames as fast as they come and look at nothing but their size. Each has a connection of
// its own, as routers have. They speak HTTP/2 without a gRPC library, because on the machine of the monitor every
// microsecond that a reader takes is missing there, and real watchers are elsewhere; towards the monitor they behave as
// grpc-go's do.
type Readers struct {
	Frames, Bytes atomic.Uint64 // messages of gRPC, and what is in them

	conns   []net.Conn
	reading sync.WaitGroup
	closing atomic.Bool
	stopped atomic.Bool

	mu    sync.Mutex
	ended []error // guarded by mu: why watches ended that nobody asked to end
}

// opening is how many watches are opened at once.
const opening = 64

// Watch opens n watches of everything at target. It returns when each has received its first frame.
func Watch(ctx context.Context, target string, n int) (*Readers, error) {
	r := &Readers{}
	first := make(chan error, n)
	slots := make(chan struct{}, opening)
	for range n {
		slots <- struct{}{}
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", target)
		if err != nil {
			r.Close()
			return nil, fmt.Errorf("open watch %d of %d: %w", len(r.conns)+1, n, err)
		}
		r.conns = append(r.conns, conn)
		r.reading.Go(func() {
			err := r.read(conn, target, func() {
				first <- nil
				<-slots
			})
			if err == nil || r.closing.Load() {
				return
			}
			select {
			case first <- err: // nobody reads it once all watches are open
			default:
			}
			r.mu.Lock()
			r.ended = append(r.ended, fmt.Errorf("a watch ended: %w", err))
			r.mu.Unlock()
		})
	}
	for range n {
		select {
		case err := <-first:
			if err != nil {
				r.Close()
				return nil, fmt.Errorf("open a watch: %w", err)
			}
		case <-ctx.Done():
			r.Close()
			return nil, fmt.Errorf("open %d watches: %w", n, context.Cause(ctx))
		}
	}
	return r, nil
}

// read reads one watch until it ends; opened is called with its first message.
func (r *Readers) read(conn net.Conn, target string, opened func()) error {
	h, err := openWatch(conn, target)
	if err != nil {
		return err
	}
	var before, messages uint64
	for {
		if r.stopped.Load() {
			return nil
		}
		data, err := h.next()
		if err != nil {
			return err
		}
		if h.messages > messages {
			if messages == 0 {
				opened()
			}
			r.Frames.Add(h.messages - messages)
			messages = h.messages
		}
		r.Bytes.Add(h.bytes - before)
		before = h.bytes
		if data == 0 && h.over {
			return errors.New("the monitor ended it")
		}
	}
}

// Stop lets all of them read no more, with their connections open, as a process does that hangs.
func (r *Readers) Stop() { r.stopped.Store(true) }

// Ended returns why watches ended that nobody asked to end.
func (r *Readers) Ended() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]error(nil), r.ended...)
}

// Close ends every watch and waits until all is gone.
func (r *Readers) Close() {
	r.closing.Store(true)
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.reading.Wait()
}
