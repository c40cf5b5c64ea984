package pub

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/loadmonitor/loadmonitor/load"
)

// Engine is one engine that publishes, from Bind to Close. Its methods may be called from any goroutine.
type Engine struct {
	// immutable after Bind
	p     *Publisher
	bound Range
	topic []byte
	form  Form
	pace  pace
	ranks []rank

	// used only by Run
	failing int // ranks whose last message could not be sent

	published, replaced, failed atomic.Uint64

	close    sync.Once
	closeErr error

	closed bool // guarded by p.mu
}

// rank is one DP rank's socket with what is sent on it.
type rank struct {
	// immutable after Bind
	e      *Engine
	number int

	// used only by Run
	socket   socket
	sequence int64 // of the next message
	failing  bool

	// guarded by p.mu
	cadence cadence
	payload []byte // the newest
	queued  bool   // it has not been sent yet
}

// socket is what is used of a PUB socket once it is bound.
type socket interface {
	SendBytes([]byte, zmq.Flag) (int, error)
	Close() error
}

// Stats are an engine's figures since Bind. They only rise.
type Stats struct {
	Published uint64 `json:"published"` // messages handed to libzmq, whether or not anybody subscribes
	Replaced  uint64 `json:"replaced"`  // payloads that a newer one overtook before they were sent
	Failed    uint64 `json:"failed"`    // messages that libzmq refused
}

// Range returns where the engine's sockets are bound: what may be advertised.
func (e *Engine) Range() Range { return e.bound }

// Stats returns the figures of now.
func (e *Engine) Stats() Stats {
	return Stats{Published: e.published.Load(), Replaced: e.replaced.Load(), Failed: e.failed.Load()}
}

// Publish tells the load of one rank after a step of its scheduler. Whether it is sent now is the cadence's decision; it
// is sent by Run, and Publish waits for nothing. l is only borrowed. A SnapshotTimeUnixMs of 0 means now. The error wraps
// ErrInvalid, ErrClosed or ErrStopped.
func (e *Engine) Publish(l *load.RankLoad, step Step) error {
	if l.DPRank < 0 || int(l.DPRank) >= len(e.ranks) {
		return fmt.Errorf("pub: rank %d: want 0 to %d: %w", l.DPRank, len(e.ranks)-1, ErrInvalid)
	}
	queued, err := e.offer(&e.ranks[l.DPRank], l, step, time.Now())
	if queued {
		select {
		case e.p.wake <- struct{}{}:
		default: // Run has been told
		}
	}
	return err
}

// offer makes l the rank's payload if it is to be sent, and reports whether the queue has grown.
func (e *Engine) offer(r *rank, l *load.RankLoad, step Step, now time.Time) (bool, error) {
	p := e.p
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended:
		return false, fmt.Errorf("pub: %w", ErrStopped)
	case e.closed:
		return false, fmt.Errorf("pub: %v: %w", e.bound, ErrClosed)
	}
	if !r.cadence.look(step, e.pace, now) {
		return false, nil
	}
	payload, volatile := p.encoder.encode(e.form, l, now)
	changed := len(payload) != len(r.payload) || !bytes.Equal(payload[volatile:], r.payload[volatile:])
	if !r.cadence.due(step, changed, e.pace, now) {
		return false, nil
	}
	r.payload = append(r.payload[:0], payload...)
	if r.queued {
		e.replaced.Add(1)
		return false, nil
	}
	r.queued = true
	p.queue = append(p.queue, r)
	return true, nil
}

// send sends the rank's newest payload. It is called by Run.
func (r *rank) send() {
	p, e := r.e.p, r.e
	p.mu.Lock()
	r.queued = false
	p.payload = append(p.payload[:0], r.payload...)
	p.mu.Unlock()
	if r.socket == nil { // closed since
		return
	}
	binary.BigEndian.PutUint64(p.sequence[:], uint64(r.sequence))
	err := r.write(e.topic, p.sequence[:], p.payload)
	r.note(err)
	if err != nil {
		e.failed.Add(1)
		return
	}
	r.sequence++
	e.published.Add(1)
}

// note logs the first failure of the engine's sockets and the end of the last one.
func (r *rank) note(err error) {
	e := r.e
	if r.failing == (err != nil) {
		return
	}
	r.failing = err != nil
	if !r.failing {
		if e.failing--; e.failing == 0 {
			e.p.logger.Info("load is published again", "endpoint", e.bound.Endpoint(r.number))
		}
		return
	}
	if e.failing++; e.failing == 1 {
		e.p.logger.Warn("load cannot be published", "endpoint", e.bound.Endpoint(r.number), "error", err)
	}
}

// write sends one message. A PUB socket drops what a subscriber's pipe cannot take, so it never waits, and the frames of
// a message go to each subscriber together or not at all.
func (r *rank) write(topic, sequence, payload []byte) error {
	if _, err := r.socket.SendBytes(topic, zmq.SNDMORE|zmq.DONTWAIT); err != nil {
		return err
	}
	if _, err := r.socket.SendBytes(sequence, zmq.SNDMORE|zmq.DONTWAIT); err != nil {
		return err
	}
	_, err := r.socket.SendBytes(payload, zmq.DONTWAIT)
	return err
}

// Close closes the engine's sockets and returns once their ports are free again. What was not sent yet is dropped. Only
// the first call does something; every call returns its error, which says that a port was not given back.
func (e *Engine) Close() error {
	e.close.Do(func() {
		e.p.mu.Lock()
		e.closed = true
		e.p.mu.Unlock()
		// When Run has ended, it has closed the sockets.
		_ = e.p.do(context.Background(), e.closeSockets)
		e.p.release(len(e.ranks))
		e.closeErr = awaitRelease(e.bound)
	})
	return e.closeErr
}

// closeSockets is called by Run.
func (e *Engine) closeSockets() {
	for i := range e.ranks {
		r := &e.ranks[i]
		if r.socket == nil {
			continue
		}
		if err := r.socket.Close(); err != nil {
			e.p.logger.Warn("load socket does not close", "endpoint", e.bound.Endpoint(i), "error", err)
		}
		r.socket = nil
	}
	delete(e.p.engines, e)
}
