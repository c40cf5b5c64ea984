package registration

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// turns is an owner of one loop.
type turns func(context.Context) (time.Time, bool)

func (t turns) workerID() string                           { return "w" }
func (t turns) turn(ctx context.Context) (time.Time, bool) { return t(ctx) }

func newLoop(t turns) *loop { return &loop{owner: t} }

// startLoop starts l and returns the family that waits for it.
func startLoop(ctx context.Context, l, before *loop) *family {
	f := newFamily()
	f.ctx = ctx
	if before != nil {
		f.ending["w"] = before
	}
	f.start(l)
	return f
}

// count returns how many loops were stopped and are not over yet.
func (f *family) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ending)
}

func TestLoop_TurnsComeAtTheirTimesAndWhenWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var turns []time.Duration
		l := newLoop(func(context.Context) (time.Time, bool) {
			turns = append(turns, time.Since(began))
			time.Sleep(time.Second)
			return time.Now().Add(9 * time.Second), len(turns) < 5
		})
		family := startLoop(t.Context(), l, nil)
		time.Sleep(12500 * time.Millisecond) // two turns, at 0 and 10 s
		l.wake()
		time.Sleep(500 * time.Millisecond) // in the middle of the third
		l.wake()
		l.wake()
		family.running.Wait()
		if want := []time.Duration{0, 10 * time.Second, 12500 * time.Millisecond, 13500 * time.Millisecond, 23500 * time.Millisecond}; !slices.Equal(turns, want) {
			t.Errorf("turns at %v, want %v", turns, want)
		}
		l.wake()
		l.stop()
		synctest.Wait()
		if len(turns) != 5 || !l.over() {
			t.Errorf("%d turns after the last one", len(turns)-5)
		}
	})
}

func TestLoop_StopEndsAnIdleLoopAtOnceAndATurnByItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := func(ctx context.Context) (time.Time, bool) {
			<-ctx.Done()
			time.Sleep(time.Second)
			return time.Now(), true
		}
		waits := func(context.Context) (time.Time, bool) { return time.Now().Add(time.Hour), true }
		idle, busy, next := newLoop(waits), newLoop(hangs), newLoop(waits)
		startLoop(t.Context(), idle, nil)
		ending := startLoop(t.Context(), busy, nil)
		startLoop(t.Context(), next, busy)
		synctest.Wait()
		began := time.Now()
		idle.stop()
		busy.stop()
		next.stop()
		if !idle.over() || busy.over() || next.over() {
			t.Errorf("over: idle %v, busy %v, next %v; want the idle one alone", idle.over(), busy.over(), next.over())
		}
		ending.running.Wait()
		if took := time.Since(began); took != time.Second {
			t.Errorf("the turn under way ended after %v", took)
		}
		synctest.Wait()
		if !next.over() {
			t.Error("a loop that was stopped before its first turn goes on")
		}
	})
}

func TestLoop_HoldsNoGoroutineWhileItWaits(t *testing.T) {
	const loops = 1000
	synctest.Test(t, func(t *testing.T) {
		before := runtime.NumGoroutine()
		all := make([]*loop, loops)
		for i := range all {
			all[i] = newLoop(func(context.Context) (time.Time, bool) { return time.Now().Add(time.Hour), true })
			startLoop(t.Context(), all[i], nil)
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n >= loops/2 {
			t.Errorf("%d goroutines for %d loops that wait", n, loops)
		}
		for i := range all {
			all[i].stop()
		}
	})
}
