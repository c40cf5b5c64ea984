package registration

import (
	"context"
	"fmt"
	"time"
)

// Discoverer is a source of workers that changes at run time.
type Discoverer interface {
	// Discover calls update with the full set whenever the set may have changed, and first as soon as it knows it; what
	// was in the set before and is not in it now is gone. An entry with an empty URL is gone as well (a source may know
	// of a worker whose address it does not know any more). update does not block and keeps nothing of the slice.
	// Discover returns when ctx ends. When it returns before, its last set stays and it is started again.
	Discover(ctx context.Context, update func([]Spec)) error
}

const (
	// firstSetTimeout bounds how long a source that does not answer holds back what the others know.
	firstSetTimeout = 10 * time.Second
	// rediscover is the pause before a discoverer that returned is started again.
	rediscover = 5 * time.Second
)

// discover runs one discoverer until ctx ends.
func (r *Registry) discover(ctx context.Context, name string, d Discoverer) {
	failing := false
	for {
		invalid := false
		err := d.Discover(ctx, func(specs []Spec) {
			failing = false
			invalid = r.setFound(name, specs, invalid)
		})
		if ctx.Err() != nil {
			return
		}
		r.firstSetDone(name)
		if !failing {
			failing = true
			r.log.Warn("discovery ended; its last workers stay and it is started again", "source", name, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(rediscover):
		}
	}
}

// setFound replaces what a discoverer knows. Entries that are not valid are left out, counted, and logged once per
// episode; it reports whether there are any.
func (r *Registry) setFound(name string, specs []Spec, wasInvalid bool) (invalid bool) {
	targets := make([]*target, 0, len(specs))
	var first error
	for i, s := range specs {
		if s.URL == "" {
			continue
		}
		if s.Where == "" {
			s.Where = fmt.Sprintf("%s entry %d", name, i+1)
		}
		t, err := s.normalise(r.opts.MaxRanks)
		if err != nil {
			r.invalid.Add(1)
			if first == nil {
				first = fmt.Errorf("%s: %w", s.name(), err)
			}
			continue
		}
		t.source = name
		targets = append(targets, t)
	}
	if first != nil && !wasInvalid {
		r.log.Warn("discovery names a worker that is not valid; it is left out", "source", name, "error", first)
	}
	set := newSourceSet(targets)
	r.mu.Lock()
	r.found[name] = set
	r.mu.Unlock()
	r.firstSetDone(name)
	r.wake()
	return first != nil
}

// firstSetDone notes that a source no longer holds back the first pass.
func (r *Registry) firstSetDone(name string) {
	r.mu.Lock()
	delete(r.waiting, name)
	last := len(r.waiting) == 0
	r.mu.Unlock()
	if last {
		r.wake()
	}
}

// firstSets waits until every discoverer has told its first set or has failed, but not for ever: the first pass ends
// warming_up, and a list that is short for a known reason beats none (rule LIFE1). It reports false when ctx ended.
func (r *Registry) firstSets(ctx context.Context) bool {
	timeout := time.NewTimer(firstSetTimeout)
	defer timeout.Stop()
	for {
		r.mu.Lock()
		left := len(r.waiting)
		r.mu.Unlock()
		if left == 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-timeout.C:
			r.log.Warn("some discovery sources have not answered yet; starting without them", "sources", left)
			return true
		case <-r.trigger:
		}
	}
}
