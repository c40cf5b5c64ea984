package zmq

import (
	"slices"
	"sync"
)

// places hands out the sockets that the open-file limit allows, first come, first served.
type places struct {
	mu    sync.Mutex
	free  int
	queue []*rank // that wait for a place, oldest first
}

// place is what a rank has of places; guarded by places.mu.
type place uint8

const (
	placeNone place = iota
	placeQueued
	placeHeld
)

func (p *places) open(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = n
}

// take gives the rank a place, or queues it.
func (p *places) take(r *rank) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 {
		r.place = placeQueued
		p.queue = append(p.queue, r)
		return false
	}
	p.free--
	r.place = placeHeld
	return true
}

// leave takes back what the rank has. It returns the rank whose turn it is now, which has the place from then on; nil: none.
func (p *places) leave(r *rank) *rank {
	p.mu.Lock()
	defer p.mu.Unlock()
	had := r.place
	r.place = placeNone
	switch had {
	case placeQueued:
		p.queue = slices.DeleteFunc(p.queue, func(q *rank) bool { return q == r })
	case placeHeld:
		if len(p.queue) == 0 {
			p.free++
			return nil
		}
		next := p.queue[0]
		p.queue = slices.Delete(p.queue, 0, 1)
		next.place = placeHeld
		return next
	}
	return nil
}

// waiting returns how many ranks have no place.
func (p *places) waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue)
}
