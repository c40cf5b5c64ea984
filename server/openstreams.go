package server

import (
	"fmt"
	"sync"

	"github.com/loadmonitor/loadmonitor/load"
)

// openStreams are the report streams that are open, at most max.
type openStreams struct {
	max int

	mu     sync.Mutex
	set    map[*load.Stream]struct{}
	closed bool
}

func newOpenStreams(limit int) *openStreams {
	return &openStreams{max: limit, set: make(map[*load.Stream]struct{})}
}

// add refuses a stream that is one too many, or that comes after close.
func (o *openStreams) add(st *load.Stream) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return load.ErrShuttingDown
	case len(o.set) >= o.max:
		return fmt.Errorf("%w: at most %d", load.ErrTooManyStreams, o.max)
	}
	o.set[st] = struct{}{}
	return nil
}

func (o *openStreams) remove(st *load.Stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.set, st)
}

func (o *openStreams) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.set)
}

// close ends every stream and lets no other come.
func (o *openStreams) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for st := range o.set {
		st.End(load.ErrShuttingDown)
	}
}
