package registration

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// began is a turn that an agenda started.
type began struct {
	loop int
	at   time.Duration
}

// newAgendaLoops returns loops that take one turn when the agenda of their family says so, and a channel with room for all
// of these turns.
func newAgendaLoops(t *testing.T, n int) (*agenda, []*loop, chan began) {
	epoch := time.Now()
	turns := make(chan began, n)
	f := newFamily()
	f.ctx = t.Context()
	f.running.Add(n)
	loops := make([]*loop, n)
	for i := range loops {
		loops[i] = newLoop(func(context.Context) (time.Time, bool) {
			turns <- began{i, time.Since(epoch)}
			return time.Time{}, false
		})
		loops[i].family = f
	}
	return f.agenda, loops, turns
}

// emptied checks that an agenda keeps nothing of the loops that were in it.
func (a *agenda) emptied(t *testing.T, loops []*loop) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waiting) != 0 || a.timer != nil && a.timer.Stop() {
		t.Errorf("%d loops wait, or the timer runs on", len(a.waiting))
	}
	if slices.ContainsFunc(a.waiting[:cap(a.waiting)], func(x appointment) bool { return x.loop != nil }) {
		t.Error("the heap still points to a loop")
	}
	if i := slices.IndexFunc(loops, func(l *loop) bool { return l.place != 0 }); i >= 0 {
		t.Errorf("loop %d has place %d", i, loops[i].place)
	}
}

func TestAgenda_StartsLoopsWhenTheyAreDue(t *testing.T) {
	const remove = -time.Hour
	type step struct {
		when time.Duration
		loop int
		at   time.Duration // or remove
	}
	for _, tt := range []struct {
		name  string
		steps []step
		want  []began
	}{
		{"in the order of their times", []step{{0, 0, 3}, {0, 1, 1}, {0, 2, 4}, {0, 3, 2}}, []began{{1, 1}, {3, 2}, {0, 3}, {2, 4}}},
		{"without one removed from the middle", []step{{0, 0, 1}, {0, 1, 2}, {0, 2, 3}, {0, 3, 4}, {0, 1, remove}}, []began{{0, 1}, {2, 3}, {3, 4}}},
		{"without the first", []step{{0, 0, 2}, {0, 1, 3}, {1, 0, remove}}, []began{{1, 3}}},
		{"without the last one left", []step{{0, 0, 2}, {1, 0, remove}}, nil},
		{"at an earlier time", []step{{0, 0, 9}, {1, 0, remove}, {1, 0, 2}}, []began{{0, 2}}},
		{"at a later time", []step{{0, 0, 2}, {1, 0, remove}, {1, 0, 9}}, []began{{0, 9}}},
		{"before one that came earlier", []step{{0, 0, 9}, {1, 1, 2}}, []began{{1, 2}, {0, 9}}},
		{"at once when the time has passed", []step{{3, 0, 1}, {3, 1, 5}}, []began{{0, 3}, {1, 5}}},
		{"again after there was none", []step{{0, 0, 1}, {5, 1, 7}}, []began{{0, 1}, {1, 7}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, loops, turns := newAgendaLoops(t, 4)
				epoch := time.Now()
				for _, s := range tt.steps {
					time.Sleep(time.Until(epoch.Add(s.when * time.Second)))
					if s.at != remove {
						a.put(loops[s.loop], epoch.Add(s.at*time.Second))
					} else if !a.remove(loops[s.loop]) || a.remove(loops[s.loop]) {
						t.Errorf("loop %d: want it removed once", s.loop)
					}
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				close(turns)
				var got []began
				for b := range turns {
					got = append(got, began{b.loop, b.at / time.Second})
				}
				if !slices.Equal(got, tt.want) {
					t.Errorf("turns %v, want %v", got, tt.want)
				}
				a.emptied(t, loops)
			})
		})
	}
}

// Half of the loops are due at one instant, the others at any, and some are taken out again.
func TestAgenda_ManyLoops(t *testing.T) {
	const n = 2000
	synctest.Test(t, func(t *testing.T) {
		a, loops, turns := newAgendaLoops(t, n)
		epoch := time.Now()
		want := make(map[began]bool)
		for i, l := range loops {
			at := time.Second
			if i%2 == 0 {
				at = rand.N(2 * time.Second)
			}
			a.put(l, epoch.Add(at))
			want[began{i, at}] = true
			if out := rand.IntN(i + 1); i%3 == 0 && a.remove(loops[out]) {
				for b := range want {
					if b.loop == out {
						delete(want, b)
					}
				}
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		close(turns)
		for b := range turns {
			if !want[b] {
				t.Errorf("loop %d took a turn at %v, want none then", b.loop, b.at)
			}
			delete(want, b)
		}
		if len(want) > 0 {
			t.Errorf("%d loops took no turn", len(want))
		}
		a.emptied(t, loops)
	})
}

// What wakes and stops a loop meets its turns at every point.
func TestAgenda_LoopsTakeOneTurnAtATimeUntilTheyAreStopped(t *testing.T) {
	f := newFamily()
	f.ctx = t.Context()
	loops := make([]*loop, 50)
	var few atomic.Int32 // how many loops have taken few turns yet
	few.Store(int32(len(loops)))
	for i := range loops {
		var busy atomic.Bool
		var turns int
		loops[i] = newLoop(func(context.Context) (time.Time, bool) {
			if busy.Swap(true) {
				t.Error("two turns at a time")
			}
			if turns++; turns == 20 {
				few.Add(-1)
			}
			busy.Store(false)
			return time.Now().Add(rand.N(200 * time.Microsecond)), true
		})
		f.running.Add(1)
		loops[i].start(f, nil)
	}
	for few.Load() > 0 {
		loops[rand.IntN(len(loops))].wake()
	}
	for _, l := range loops {
		go l.wake()
		l.stop()
	}
	f.running.Wait()
	for i, l := range loops {
		if !l.over() {
			t.Errorf("loop %d is not over", i)
		}
	}
	f.agenda.emptied(t, loops)
}
