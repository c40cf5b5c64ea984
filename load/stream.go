package load

import "sync"

// Stream is one live feed of reports into the aggregator, from its first report to its end. It is an identity: a later
// stream of the same source takes over, and what the older one still says or how it ends changes nothing (rule ID5).
type Stream struct {
	transport Transport // immutable
	ended     chan struct{}

	once sync.Once
	err  error // written once before ended is closed
}

// NewStream returns a stream that has not ended.
func NewStream(t Transport) *Stream {
	return &Stream{transport: t, ended: make(chan struct{})}
}

// Transport returns the way the stream's reports take.
func (s *Stream) Transport() Transport { return s.transport }

// End says that the stream must stop and why; only the first call counts. It never blocks.
func (s *Stream) End(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.ended)
	})
}

// Ended returns a channel that is closed once End was called.
func (s *Stream) Ended() <-chan struct{} { return s.ended }

// Err returns why the stream was ended; nil before that.
func (s *Stream) Err() error {
	select {
	case <-s.ended:
		return s.err
	default:
		return nil
	}
}
