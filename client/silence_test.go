package client

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// The router must not go on believing the last word of a monitor that it no longer hears: an idle worker would attract
// all traffic for ever.
func TestClient_SilentLinkAgesByItsOwnClock(t *testing.T) { // C1, WATCH 7
	synctest.Test(t, func(t *testing.T) {
		patient := func(w *loadmonitorpb.Worker) { w.SetFreshnessWindowMs(10_000) }
		c, _ := serve(t, Options{}, func(s *session) error {
			ws := workers{aWorker(1, 0, s.us()-1_000_000), aWorker(2, 0, s.us()), with(aWorker(3, 0, s.us()-500_000), patient)}
			if err := s.send(full(5, ws...)); err != nil {
				return err
			}
			if err := s.beat(1, "e", 5); err != nil {
				return err
			}
			return s.hang()
		}, (*session).hang)
		start := time.Now()
		wait(t, c, time.Second, atVersion(5))
		since := func() time.Duration { return time.Since(start) }

		// Heard last at 1 s; the timeout is three heartbeats. By then the windows of w1 (till 2 s) and w2 (till 3 s) are over.
		v := wait(t, c, time.Minute, func(v *View) bool { return !v.Link.Up })
		if since() != 4*time.Second {
			t.Errorf("the link is down after %v: want 4s", since())
		}
		if !errors.Is(v.Link.Err, ErrSilent) || v.Link.Since != time.Now() || v.Version != 5 {
			t.Errorf("link %+v, version %d", v.Link, v.Version)
		}
		if v.Summary != (load.Summary{Workers: 3, Fresh: 1, Stale: 2}) || v.Complete() {
			t.Errorf("summary %+v", v.Summary)
		}
		w, _ := v.Worker("w00001")
		if w.Freshness != load.Stale || w.Ranks[0].Freshness != load.Stale || !strings.Contains(w.Reason, "silent for longer than 3s") || w.Ranks[0].Reason != w.Reason {
			t.Errorf("w1 is %v, %q; its rank %v, %q", w.Freshness, w.Reason, w.Ranks[0].Freshness, w.Ranks[0].Reason)
		}
		if n, ok := w.Aggregate.Int(load.SumRunningReqs); !ok || n != 0 {
			t.Error("the last values are gone")
		}
		if age, ok := w.Age(time.Now()); !ok || age != 5*time.Second {
			t.Errorf("w1 has age %v, %t: want 5s", age, ok)
		}
		if freshness(v, 3) != load.Fresh {
			t.Errorf("w3 is %v", freshness(v, 3))
		}

		// w3 follows by itself at -0.5 s + 10 s.
		v = wait(t, c, time.Minute, func(v *View) bool { return v.Summary.Fresh == 0 })
		if since() != 9500*time.Millisecond {
			t.Errorf("w3 is stale after %v: want 9.5s", since())
		}
		if v.Summary != (load.Summary{Workers: 3, Stale: 3}) {
			t.Errorf("summary %+v", v.Summary)
		}
		if got := c.Stats().LinkLosses; got != 1 {
			t.Errorf("%d link losses", got)
		}
	})
}

// Ageing wakes waiters no more often than a living monitor would.
func TestClient_AgeingIsPaced(t *testing.T) { // SNAP4
	synctest.Test(t, func(t *testing.T) {
		const n = 500
		c, _ := serve(t, Options{}, func(s *session) error {
			ws := make(workers, n)
			for i := range ws {
				ws[i] = with(aWorker(uint32(i+1), 1, s.us()+uint64(i)*1000), func(w *loadmonitorpb.Worker) { w.SetFreshnessWindowMs(3100) })
			}
			if err := s.send(full(5, ws...)); err != nil {
				return err
			}
			return s.hang()
		}, (*session).hang)
		views, start := 0, time.Now()
		wait(t, c, time.Minute, func(v *View) bool {
			views++
			return v.Version > 0 && v.Summary.Fresh == 0
		})
		if took := time.Since(start); took < 3599*time.Millisecond || took > 3605*time.Millisecond || views > n/5+10 {
			t.Errorf("%d views until all were stale, after %v: want at most %d, after 3.6s", views, took, n/5+10)
		}
	})
}

func TestClient_MonitorsWordCountsAgainAfterSilence(t *testing.T) { // WATCH 7
	synctest.Test(t, func(t *testing.T) {
		c, m := serve(t, Options{},
			func(s *session) error {
				if err := s.send(full(5, aWorker(1, 0, s.us()), aWorker(2, 0, s.us()))); err != nil {
					return err
				}
				return s.hang()
			},
			func(s *session) error {
				if err := s.send(delta(5, 8, scene{2, 2}, aWorker(1, 3, s.us()))); err != nil {
					return err
				}
				return s.beat(forever, "e", 8)
			})
		wait(t, c, time.Minute, func(v *View) bool { return v.Summary.Stale == 2 })
		v := wait(t, c, time.Minute, func(v *View) bool { return v.Link.Up })
		if v.Version != 8 || freshness(v, 1) != load.Fresh || freshness(v, 2) != load.Fresh || !v.Complete() || v.Link.Err != nil {
			t.Errorf("version %d, %v, %v, link %+v", v.Version, freshness(v, 1), freshness(v, 2), v.Link)
		}
		if w, _ := v.ByHandle(2); w.Reason != "" || w.Ranks[0].Reason != "" {
			t.Errorf("reasons %q, %q", w.Reason, w.Ranks[0].Reason)
		}
		if m.request(1).GetResume().GetVersion() != 5 {
			t.Errorf("resumes %v", m.request(1))
		}
	})
}

// A monitor whose publisher is stuck still answers new streams, with what it published last. That is no proof of life.
func TestClient_RepeatedPictureOfAStuckPublisherStaysStale(t *testing.T) { // WATCH 10
	for _, answer := range []string{"nothing new", "full picture"} {
		bubble(answer, t, func(t *testing.T) {
			again := func(s *session) error {
				r := frame{Epoch: "e", View: "v", BaseVersion: 5, Version: 5, Last: true}.Build()
				if answer == "full picture" {
					r = full(5, aWorker(1, 0, 1))
				}
				if err := s.send(r); err != nil {
					return err
				}
				return s.hang()
			}
			c, m := serve(t, Options{},
				func(s *session) error {
					if err := s.send(full(5, aWorker(1, 0, 1))); err != nil {
						return err
					}
					return s.hang()
				}, again)
			down := wait(t, c, time.Minute, func(v *View) bool { return !v.Link.Up && v.Epoch != "" })
			time.Sleep(time.Minute)
			v := c.View()
			if v.Link.Up || v.Link.Since != down.Link.Since || v.Summary.Fresh != 0 || m.tries() < 4 {
				t.Errorf("link %+v, summary %+v after %d tries", v.Link, v.Summary, m.tries())
			}
		})
	}
	bubble("until it beats again", t, func(t *testing.T) {
		c, _ := serve(t, Options{},
			func(s *session) error {
				if err := s.send(full(5, aWorker(1, 0, 1))); err != nil {
					return err
				}
				return s.hang()
			}, func(s *session) error {
				if err := s.send(frame{Epoch: "e", View: "v", BaseVersion: 5, Version: 5, Last: true}.Build()); err != nil {
					return err
				}
				return s.beat(forever, "e", 5)
			})
		wait(t, c, time.Minute, func(v *View) bool { return !v.Link.Up && v.Epoch != "" })
		if v := wait(t, c, time.Minute, func(v *View) bool { return v.Link.Up }); freshness(v, 1) != load.Fresh {
			t.Errorf("w1 is %v", freshness(v, 1))
		}
	})
}

func TestClient_ShortLossIsNotSeen(t *testing.T) { // H5: a proxy ages connections
	synctest.Test(t, func(t *testing.T) {
		resumed := func(s *session) error {
			if err := s.send(frame{Epoch: "e", View: "v", BaseVersion: 5, Version: 5, Last: true}.Build()); err != nil {
				return err
			}
			if err := s.beat(20, "e", 5); err != nil {
				return err
			}
			return status.Error(codes.Unavailable, "max connection age")
		}
		c, m := serve(t, Options{},
			func(s *session) error {
				if err := s.send(full(5, aWorker(1, 0, s.us()))); err != nil {
					return err
				}
				if err := s.beat(20, "e", 5); err != nil {
					return err
				}
				return status.Error(codes.Unavailable, "max connection age")
			}, resumed)
		v := wait(t, c, time.Second, atVersion(5))
		time.Sleep(10 * time.Minute)
		select {
		case <-v.Changed():
			t.Errorf("the view has changed: link %+v", c.View().Link)
		default:
		}
		if s := c.Stats(); s.LinkLosses != 0 || s.Resumes != uint64(m.tries()-1) || m.tries() < 25 {
			t.Errorf("stats %+v after %d streams", s, m.tries())
		}
	})
}

func TestClient_NewEpochWaitsForTheWholePicture(t *testing.T) { // WATCH 9
	synctest.Test(t, func(t *testing.T) {
		c, m := serve(t, Options{},
			func(s *session) error {
				if err := s.send(full(900, aWorker(1, 10, s.us()), aWorker(2, 20, s.us()))); err != nil {
					return err
				}
				return errGone
			},
			func(s *session) error {
				s.zero = time.Now().Add(-time.Millisecond) // another life, another clock
				half := frame{Epoch: "f", View: "v", Version: 2, Changed: workers{with(aWorker(1, 77, s.us()), func(w *loadmonitorpb.Worker) { w.SetId("a") })}}
				if err := s.send(half.Build()); err != nil {
					return err
				}
				if err := s.sleep(6 * time.Second); err != nil {
					return err
				}
				rest := frame{Epoch: "f", View: "v", Version: 2, Changed: workers{aWorker(2, 88, s.us())}}
				if err := s.send(scene{2, 2}.last(rest)); err != nil {
					return err
				}
				return s.beat(forever, "f", 2)
			})
		wait(t, c, time.Second, atVersion(900))
		start := time.Now()

		// The old picture stays, and ages although frames of the new one arrive.
		v := wait(t, c, 10*time.Second, func(v *View) bool { return v.Summary.Fresh == 0 })
		if got := time.Since(start); v.Epoch != "e" || v.Version != 900 || v.Len() != 2 || v.Link.Up || got != 3*time.Second {
			t.Errorf("after %v: epoch %q, version %d, %d workers, link %+v", got, v.Epoch, v.Version, v.Len(), v.Link)
		}
		old := v
		select {
		case <-v.Changed():
		case <-time.After(10 * time.Second):
			t.Fatal("the new picture does not come")
		}
		v = c.View()
		if v.Epoch != "f" || v.Version != 2 || !v.Link.Up || !v.Complete() {
			t.Errorf("epoch %q, version %d, link %+v, summary %+v", v.Epoch, v.Version, v.Link, v.Summary)
		}
		if w, _ := v.ByHandle(1); w.ID != "a" {
			t.Errorf("handle 1 is %q: handles do not carry over", w.ID)
		}
		if w, _ := v.ByHandle(2); time.Since(w.OldestReceivedAt()) < 0 || time.Since(w.OldestReceivedAt()) > 7*time.Second {
			t.Errorf("received %v ago by the new clock", time.Since(w.OldestReceivedAt()))
		}
		if w, _ := old.ByHandle(1); w.ID != "w00001" {
			t.Errorf("in the old view, handle 1 is %q now", w.ID)
		}
		if m.request(1).GetResume().GetEpoch() != "e" {
			t.Errorf("resumes %v", m.request(1))
		}
	})
}

func TestClient_LinkTimeout(t *testing.T) {
	for _, tc := range []struct {
		name                       string
		option, heartbeat, timeout time.Duration
	}{
		{"three heartbeats", 0, time.Second, 3 * time.Second},
		{"as told", 0, 200 * time.Millisecond, 600 * time.Millisecond},
		{"as asked", 5 * time.Second, time.Second, 5 * time.Second},
		{"never under three heartbeats", 100 * time.Millisecond, time.Second, 3 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &Client{linkTimeout: tc.option, heartbeat: tc.heartbeat}
			if got := c.timeoutLocked(); got != tc.timeout {
				t.Errorf("got %v: want %v", got, tc.timeout)
			}
		})
	}
}
