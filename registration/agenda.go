package registration

import (
	"container/heap"
	"sync"
	"time"
)

// agenda holds when the loops that wait take their next turn, and starts each of them then. It is one timer for all: one
// of its own, with what it calls, would take as much memory as the loop itself.
//
// Its lock is the innermost: it is taken under a loop's, and nothing is called under it.
type agenda struct {
	began time.Time // immutable

	mu sync.Mutex
	// guarded by mu
	waiting appointments
	timer   *time.Timer // fires when the first one is due; nil: there was none yet
}

func newAgenda() *agenda { return &agenda{began: time.Now()} }

// put lets a loop, which must not wait already, take a turn at a time.
func (a *agenda) put(l *loop, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	heap.Push(&a.waiting, appointment{at.Sub(a.began), l})
	if a.waiting[0].loop == l {
		a.armLocked()
	}
}

// remove reports whether the loop waited, and lets it wait no longer: whoever is told so starts or ends it.
func (a *agenda) remove(l *loop) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.place == 0 {
		return false
	}
	wasFirst := a.waiting[0].loop == l
	heap.Remove(&a.waiting, int(l.place)-1)
	if wasFirst {
		a.armLocked()
	}
	return true
}

// begin starts what is due.
func (a *agenda) begin() {
	for l := a.takeDue(); l != nil; l = a.takeDue() {
		go l.run()
	}
}

// takeDue removes a loop that is due. Where none is, it returns nil, and begin is called again in time.
func (a *agenda) takeDue() *loop {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waiting) == 0 || a.waiting[0].at > time.Since(a.began) {
		a.armLocked()
		return nil
	}
	return heap.Pop(&a.waiting).(appointment).loop
}

// armLocked sets the timer for the first loop.
func (a *agenda) armLocked() {
	switch {
	case len(a.waiting) == 0:
		if a.timer != nil {
			a.timer.Stop()
		}
	case a.timer == nil:
		a.timer = time.AfterFunc(a.waiting[0].at-time.Since(a.began), a.begin)
	default:
		a.timer.Reset(a.waiting[0].at - time.Since(a.began))
	}
}

// appointments is a min-heap. Each loop in it knows its place.
type appointments []appointment

type appointment struct {
	at   time.Duration // since agenda.began
	loop *loop
}

func (a appointments) Len() int           { return len(a) }
func (a appointments) Less(i, j int) bool { return a[i].at < a[j].at }
func (a appointments) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].loop.place, a[j].loop.place = int32(i+1), int32(j+1)
}

func (a *appointments) Push(x any) {
	*a = append(*a, x.(appointment))
	(*a)[len(*a)-1].loop.place = int32(len(*a))
}

func (a *appointments) Pop() any {
	last := len(*a) - 1
	x := (*a)[last]
	x.loop.place = 0
	(*a)[last] = appointment{}
	*a = (*a)[:last]
	return x
}
