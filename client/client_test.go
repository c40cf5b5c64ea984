package client

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

var errGone = status.Error(codes.Unavailable, "shutting down")

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

func TestClient_LostStreamIsResumed(t *testing.T) { // W1
	synctest.Test(t, func(t *testing.T) {
		c, m := serve(t, Options{},
			func(s *session) error {
				if err := s.send(full(5, aWorker(1, 10, s.us()))); err != nil {
					return err
				}
				if err := s.send(delta(5, 6, scene{1, 1}, aWorker(1, 11, s.us()))); err != nil {
					return err
				}
				return errGone
			},
			func(s *session) error {
				if err := s.send(delta(6, 9, scene{1, 1}, aWorker(1, 12, s.us()))); err != nil {
					return err
				}
				return s.beat(forever, "e", 9)
			})
		v := wait(t, c, 5*time.Second, atVersion(9))
		if !v.Link.Up {
			t.Errorf("link %+v", v.Link)
		}
		want := loadmonitorpb.Resume_builder{Epoch: "e", Version: 6, View: "v"}.Build()
		if m.request(0).HasResume() {
			t.Errorf("the first request resumes: %v", m.request(0))
		}
		if diff := cmp.Diff(want, m.request(1).GetResume(), protocmp.Transform()); diff != "" {
			t.Errorf("resume (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(Stats{Tries: 2, Resumes: 1, FullPictures: 1, Deltas: 2}, c.Stats()); diff != "" {
			t.Errorf("stats (-want +got):\n%s", diff)
		}
	})
}

func TestClient_BrokenContractAsksForTheFullPicture(t *testing.T) { // WATCH 2
	synctest.Test(t, func(t *testing.T) {
		c, m := serve(t, Options{},
			func(s *session) error {
				if err := s.send(full(5, aWorker(1, 10, s.us()))); err != nil {
					return err
				}
				if err := s.send(delta(7, 8, scene{1, 1}, aWorker(1, 99, s.us()))); err != nil { // above what is held
					return err
				}
				return s.beat(forever, "e", 8)
			},
			func(s *session) error {
				if err := s.send(full(9, aWorker(1, 12, s.us()))); err != nil {
					return err
				}
				if err := s.sleep(time.Second); err != nil {
					return err
				}
				return errGone
			},
			(*session).hang)
		v := wait(t, c, time.Second/100, atVersion(5))
		synctest.Wait()
		if now := c.View(); now.Version != 5 {
			t.Errorf("version %d is shown", now.Version)
		}
		select {
		case <-v.Changed():
			t.Error("the broken update is shown")
		default:
		}
		wait(t, c, 5*time.Second, atVersion(9))
		if m.request(1).HasResume() {
			t.Errorf("the request after the broken one resumes: %v", m.request(1))
		}
		time.Sleep(5 * time.Second)
		if m.request(2).GetResume().GetVersion() != 9 {
			t.Errorf("once there is a new picture, streams resume again: %v", m.request(2))
		}
		if got := c.Stats().Violations; got != 1 {
			t.Errorf("%d violations", got)
		}
	})
}

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
		if took := time.Since(start); took < 3599*time.Millisecond || took > 3605*time.Millisecond || views > n/5+5 {
			t.Errorf("%d views until all were stale, after %v: want at most %d, after 3.6s", views, took, n/5+5)
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

// Dropping a large picture for being slow would only make it start again.
func TestClient_SlowFirstPictureIsNotDropped(t *testing.T) { // I9
	synctest.Test(t, func(t *testing.T) {
		c, m := serve(t, Options{}, func(s *session) error {
			for i := range uint32(3) {
				if err := s.sleep(8 * time.Second); err != nil {
					return err
				}
				if err := s.send(frame{Epoch: "e", View: "v", Version: 5, Changed: workers{aWorker(i+1, 1, 1)}}.Build()); err != nil {
					return err
				}
			}
			if err := s.send(scene{3, 3}.last(frame{Epoch: "e", View: "v", Version: 5})); err != nil {
				return err
			}
			return s.beat(forever, "e", 5)
		})
		if v := wait(t, c, time.Minute, atVersion(5)); v.Len() != 3 || m.tries() != 1 {
			t.Errorf("%d workers after %d tries", v.Len(), m.tries())
		}
	})
}

func TestClient_StreamThatNeverSpeaksIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m := serve(t, Options{}, (*session).hang, func(s *session) error {
			if err := s.send(full(5, aWorker(1, 1, s.us()))); err != nil {
				return err
			}
			return s.beat(forever, "e", 5)
		})
		time.Sleep(10*time.Second + time.Microsecond)
		synctest.Wait()
		if err := c.View().Link.Err; !errors.Is(err, ErrNotConnected) || !strings.Contains(err.Error(), "no frame came") {
			t.Errorf("link says %v", err)
		}
		wait(t, c, time.Minute, atVersion(5))
		if m.tries() != 2 {
			t.Errorf("%d tries", m.tries())
		}
	})
}

func TestClient_EndedStreamsAreNotHotLooped(t *testing.T) { // I10
	for name, script := range map[string]func(s *session) error{
		"ended at once": func(s *session) error { return errGone },
		"refused":       func(s *session) error { return status.Error(codes.InvalidArgument, "filter is too large") },
		"ended after the picture": func(s *session) error {
			if err := s.send(full(5, aWorker(1, 1, s.us()))); err != nil {
				return err
			}
			return errGone
		},
		"broken": func(s *session) error { return s.send(full(0)) },
	} {
		bubble(name, t, func(t *testing.T) {
			_, m := serve(t, Options{}, script)
			time.Sleep(30 * time.Second)
			if n := m.tries(); n < 5 || n > 10 {
				t.Errorf("%d tries in 30 s: want about 9, at most 10", n)
			}
			before := m.tries()
			time.Sleep(30 * time.Second)
			if n := m.tries() - before; n > 8 {
				t.Errorf("%d tries in the next 30 s", n)
			}
		})
	}
}

func TestClient_HealthyStreamResetsTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		healthy := func(s *session) error {
			if err := s.send(full(5, aWorker(1, 1, s.us()))); err != nil {
				return err
			}
			s.beat(6, "e", 5)
			return errGone
		}
		bad := func(s *session) error { return errGone }
		c, m := serve(t, Options{}, bad, bad, bad, bad, healthy, bad)
		wait(t, c, time.Minute, atVersion(5))
		time.Sleep(6*time.Second + time.Second) // the stream lives for 6 s, then the first wait is at most 1 s
		if m.tries() != 6 {
			t.Errorf("%d tries: want 6", m.tries())
		}
	})
}

func TestClient_LinkSaysWhyTheMonitorRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := serve(t, Options{}, func(*session) error { return status.Error(codes.ResourceExhausted, "too many watchers") })
		synctest.Wait()
		err := c.View().Link.Err
		if !errors.Is(err, ErrNotConnected) || !strings.Contains(err.Error(), "too many watchers") {
			t.Errorf("link says %v", err)
		}
	})
}

func TestClient_LogsOneLinePerEpisode(t *testing.T) { // K8
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		serve(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(s *session) error {
			if err := s.send(full(5, aWorker(1, 1, s.us()))); err != nil {
				return err
			}
			return errGone
		}, func(*session) error { return errGone })
		time.Sleep(10 * time.Minute)
		lines := strings.Count(log.String(), "\n")
		for _, want := range []string{"link to the load monitor is up", "trying again", "link to the load monitor is down"} {
			if strings.Count(log.String(), want) != 1 || lines != 3 {
				t.Fatalf("%d lines: want one with %q and three in all:\n%s", lines, want, log.String())
			}
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

func TestOptions_Request(t *testing.T) { // W5
	for _, tc := range []struct {
		name string
		o    Options
		want loadmonitorpb.WatchRequest_builder
		err  string
	}{
		{name: "zero", want: loadmonitorpb.WatchRequest_builder{Ranks: true}},
		{name: "all", o: Options{
			Filter:       Filter{IDs: []string{"a"}, Models: []string{"m"}, Roles: []load.Role{load.RolePrefill, load.RoleRegular}, Zones: []string{"z"}},
			WithoutRanks: true, MinInterval: 1500 * time.Microsecond, FullOnly: true,
		}, want: loadmonitorpb.WatchRequest_builder{
			Filter: loadmonitorpb.Filter_builder{Ids: []string{"a"}, Models: []string{"m"}, Zones: []string{"z"},
				Roles: []loadmonitorpb.Role{loadmonitorpb.Role_ROLE_PREFILL, loadmonitorpb.Role_ROLE_REGULAR}}.Build(),
			MinIntervalMs: 2, FullOnly: true,
		}},
		{name: "unspecified role", o: Options{Filter: Filter{Roles: []load.Role{load.RoleUnspecified}}}, err: "unspecified role"},
		{name: "negative interval", o: Options{MinInterval: -1}, err: "MinInterval is -1ns"},
		{name: "interval out of range", o: Options{MinInterval: 50 * 24 * time.Hour}, err: "MinInterval is 1200h"},
		{name: "negative timeout", o: Options{LinkTimeout: -time.Second}, err: "LinkTimeout is -1s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := New("127.0.0.1:1", tc.o)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v: want one that says %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want.Build(), c.request, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNew_RefusesATargetThatGRPCRefuses(t *testing.T) {
	if _, err := New("a b://%%", Options{}); err == nil || !strings.Contains(err.Error(), "a b://%%") {
		t.Errorf("got %v", err)
	}
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
