package client

import (
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
)

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
		const atMost = 6*time.Second + time.Second // the stream lives for 6 s, then the first wait is at most 1 s
		start := time.Now()
		for m.tries() < 6 && time.Since(start) < time.Minute {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(start); took > atMost+10*time.Millisecond {
			t.Errorf("the stream after a healthy one was opened after %v: want at most %v", took, atMost)
		}
	})
}

// Whoever waits for a view learns at once why there is none, once for each cause.
func TestClient_LinkSaysWhyTheMonitorRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := func(why string) func(*session) error {
			return func(*session) error { return status.Error(codes.ResourceExhausted, why) }
		}
		looked := make(chan struct{})
		first := func(s *session) error {
			<-looked
			return refuse("too many watchers")(s)
		}
		c, m := serve(t, Options{}, first, refuse("too many watchers"), refuse("filter is too large"))
		says := func(v *View, why string) {
			t.Helper()
			err := v.Link.Err
			if !errors.Is(err, ErrNotConnected) || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "monitor passthrough:///monitor: ") {
				t.Errorf("link says %v, want %q", err, why)
			}
		}
		before := c.View()
		close(looked)
		synctest.Wait()
		select {
		case <-before.Changed():
		default:
			t.Error("nobody is told that the monitor refuses")
		}
		refused := c.View()
		says(refused, "too many watchers")
		<-refused.Changed()
		if m.tries() != 3 {
			t.Errorf("told after %d tries: the second fails as the first did", m.tries())
		}
		last := c.View()
		says(last, "filter is too large")
		time.Sleep(time.Minute)
		select {
		case <-last.Changed():
			t.Errorf("told again although nothing changed: %v", c.View().Link.Err)
		default:
		}
	})
}

// While the link timeout covers an interruption, freshness is the monitor's word, and the view says why the stream ended.
func TestClient_InterruptionIsTroubleUntilAStreamDelivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := serve(t, Options{},
			func(s *session) error {
				if err := s.send(full(5, aWorker(1, 10, s.us()))); err != nil {
					return err
				}
				return errGone
			},
			func(s *session) error { return s.sendThenBeat(delta(5, 6, scene{1, 1}, aWorker(1, 12, s.us()))) })
		wait(t, c, time.Second, atVersion(5))
		synctest.Wait()
		l := c.View().Link
		if !l.Up || l.Err != nil || status.Code(errors.Unwrap(l.Trouble)) != codes.Unavailable || !strings.Contains(l.Trouble.Error(), "shutting down") {
			t.Errorf("interrupted: %+v", l)
		}
		if l := wait(t, c, 2*time.Second, atVersion(6)).Link; !l.Up || l.Trouble != nil {
			t.Errorf("after a stream that delivers: %+v", l)
		}
	})
}

func TestClient_SilenceSaysHowTheStreamEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := serve(t, Options{},
			func(s *session) error {
				if err := s.send(full(5, aWorker(1, 10, s.us()))); err != nil {
					return err
				}
				return errGone
			},
			func(*session) error { return errGone })
		wait(t, c, time.Second, atVersion(5))
		l := wait(t, c, 5*time.Second, func(v *View) bool { return !v.Link.Up }).Link
		if !errors.Is(l.Err, ErrSilent) || !strings.Contains(l.Err.Error(), "shutting down") || l.Trouble == nil {
			t.Errorf("link %+v", l)
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
