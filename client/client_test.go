package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loadmonitor/loadmonitor/load"
)

func TestClient_BeforeTheFirstPicture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := serve(t, Options{}, (*session).hang)
		synctest.Wait()
		v := c.View()
		if v.Epoch != "" || v.Len() != 0 || v.Complete() || v.State != load.FleetStateUnspecified || v.Link.Up || !errors.Is(v.Link.Err, ErrNotConnected) {
			t.Errorf("got %+v", v)
		}
		for range v.All() {
			t.Error("the empty view has a worker")
		}
		_, byID := v.Worker("w")
		_, byURL := v.ByURL("http://w:1")
		_, byHandle := v.ByHandle(0)
		if _, heard := v.Link.Age(time.Now()); byID || byURL || byHandle || heard {
			t.Error("the empty view knows something")
		}
	})
}

func TestClient_FollowsUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m := serve(t, Options{}, func(s *session) error {
			if err := s.send(full(5, aWorker(1, 10, s.us()), aWorker(2, 20, s.us()))); err != nil {
				return err
			}
			if err := s.sleep(100 * time.Millisecond); err != nil {
				return err
			}
			if err := s.send(delta(5, 6, scene{2, 2}, aWorker(1, 11, s.us()))); err != nil {
				return err
			}
			return s.beat(forever, "e", 6)
		})
		synctest.Wait()
		first := c.View()
		if first.Version != 5 || !first.Link.Up || first.Link.Err != nil || !first.Complete() {
			t.Fatalf("got %+v", first)
		}
		second := wait(t, c, time.Second, atVersion(6))
		if w, _ := second.Worker("w00001"); w.Status == nil {
			t.Fatal("no worker")
		} else if n, ok := w.Aggregate.Int(load.SumRunningReqs); !ok || n != 11 {
			t.Errorf("runs %d, %t: want 11", n, ok)
		} else if got := time.Since(w.OldestReceivedAt()); got != 0 {
			t.Errorf("received %v ago: want 0", got)
		}

		// A quiet fleet: nobody is woken, and the view still tells how long ago the monitor was heard.
		time.Sleep(10*time.Minute + time.Second/2)
		select {
		case <-second.Changed():
			t.Error("heartbeats count as a change")
		default:
		}
		now := c.View()
		if age, ok := now.Link.Age(time.Now()); !ok || age > time.Second {
			t.Errorf("heard %v ago, %t", age, ok)
		}
		if !now.Link.Up || now.Version != 6 || m.tries() != 1 {
			t.Errorf("link %+v, version %d, %d tries", now.Link, now.Version, m.tries())
		}
		if w, _ := now.Worker("w00002"); w.Freshness != load.Fresh { // the monitor's word, although its window is over
			t.Errorf("w00002 is %v", w.Freshness)
		}
		if diff := cmp.Diff(Stats{Tries: 1, FullPictures: 1, Deltas: 1}, c.Stats()); diff != "" {
			t.Errorf("stats (-want +got):\n%s", diff)
		}
	})
}

func TestClient_RunEndsWithItsContextAndNothingLooksFreshThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := serve(t, Options{}, func(s *session) error {
			if err := s.send(full(5, aWorker(1, 10, s.us()))); err != nil {
				return err
			}
			return s.beat(forever, "e", 5)
		})
		v := wait(t, c, time.Second, atVersion(5))
		c.Close()
		select {
		case <-v.Changed():
		default:
			t.Error("nobody is told that the client was stopped")
		}
		last := c.View()
		w, _ := last.ByHandle(1)
		if last.Link.Up || !errors.Is(last.Link.Err, ErrStopped) || w.Freshness != load.Stale || w.Reason == "" || last.Summary != (load.Summary{Workers: 1, Stale: 1}) {
			t.Errorf("link %+v, worker %v %q, summary %+v", last.Link, w.Freshness, w.Reason, last.Summary)
		}
		if freshness(v, 1) != load.Fresh {
			t.Error("the view before has changed")
		}
		if err := c.Run(t.Context()); err == nil {
			t.Error("a client runs twice")
		}
		c.Close()
	})
}

func TestClient_RunReturnsWhileNothingAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := serve(t, Options{}, (*session).hang)
		time.Sleep(time.Second)
		c.Close()
	})
}

func TestClient_WaitEndsWithItsContext(t *testing.T) {
	c, err := New("127.0.0.1:1", Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errGone)
	if _, err := c.Wait(ctx, func(*View) bool { return false }); !errors.Is(err, errGone) {
		t.Errorf("got %v", err)
	}
	if v, err := c.Wait(ctx, func(*View) bool { return true }); v != c.View() || err != nil {
		t.Errorf("got %v, %v: want the current view", v, err)
	}
}

func TestClient_MarksMoveAges(t *testing.T) { // FR6
	synctest.Test(t, func(t *testing.T) {
		c, _ := serve(t, Options{}, func(s *session) error {
			for v := uint64(5); ; v++ {
				r := full(5, aWorker(1, 10, s.us()))
				if v > 5 {
					r = scene{1, 1}.last(frame{Epoch: "e", View: "v", BaseVersion: v - 1, Version: v, Refreshed: []uint32{1}, RefreshedUs: []uint64{s.us()}})
				}
				if err := s.send(r); err != nil {
					return err
				}
				if err := s.sleep(time.Second); err != nil {
					return err
				}
			}
		})
		first := wait(t, c, time.Second, atVersion(5))
		last := wait(t, c, time.Minute, atVersion(15))
		a, _ := first.ByHandle(1)
		b, _ := last.ByHandle(1)
		if a.Status != b.Status {
			t.Error("a mark has copied the worker")
		}
		if got := b.ReceivedAt(0).Sub(a.ReceivedAt(0)); got != 10*time.Second {
			t.Errorf("ten marks moved the receive time by %v", got)
		}
	})
}
