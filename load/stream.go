package load

import "sync/atomic"

// Stream is one live feed of reports into the aggregator, from its first report to its end. It is an identity: a later
// stream of the same source takes over, and what the older one still says or how it ends changes nothing (rule ID5).
type Stream struct {
	// immutable
	transport Transport
	onEnd     func(error) // may be nil

	ending atomic.Pointer[ending] // set once
}

type ending struct {
	err  error
	told chan struct{} // closed when onEnd has returned; nil when nobody is told
}

// NewStream returns a stream that has not ended.
func NewStream(t Transport) *Stream { return NewStreamFunc(t, nil) }

// NewStreamFunc returns a stream that has not ended. When it is ended from outside, onEnd is called with the reason, in a
// goroutine of its own: whoever ends a stream may hold a lock.
func NewStreamFunc(t Transport, onEnd func(error)) *Stream {
	return &Stream{transport: t, onEnd: onEnd}
}

// Transport returns the way the stream's reports take.
func (s *Stream) Transport() Transport { return s.transport }

// End says that the stream must stop and why; only the first call of End or Leave counts. It never blocks.
func (s *Stream) End(err error) {
	e := &ending{err: err}
	if s.onEnd != nil {
		e.told = make(chan struct{})
	}
	if s.ending.CompareAndSwap(nil, e) && s.onEnd != nil {
		go func() {
			defer close(e.told)
			s.onEnd(err)
		}()
	}
}

// Leave ends the stream from within, for err: whoever feeds it calls it last. It returns the reason that counts, which is
// that of an earlier End if there was one. After it onEnd does not run.
func (s *Stream) Leave(err error) error {
	if s.ending.CompareAndSwap(nil, &ending{err: err}) {
		return err
	}
	e := s.ending.Load()
	if e.told != nil {
		<-e.told
	}
	return e.err
}

// Err returns why the stream ended; nil before that.
func (s *Stream) Err() error {
	if e := s.ending.Load(); e != nil {
		return e.err
	}
	return nil
}
