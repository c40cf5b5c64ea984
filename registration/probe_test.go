package registration

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// fleetOf runs a registry with a dialer and the workers of specs inside the calling bubble; engines are by host:port.
func fleetOf(t *testing.T, engines map[string]http.Handler, o Options) (r *Registry, s *recorder, n *pipes) {
	t.Helper()
	n, s = newPipes(), newSink()
	for addr, e := range engines {
		t.Cleanup(n.serve(addr, e))
	}
	o.Sink, o.Dialer = s, s
	r = mustNew(t, o)
	n.use(r)
	start(t, r)
	return r, s, n
}

// autoFed runs a registry with one worker, "w", of which only the URL is configured, and whose engine is e at w:1.
func autoFed(t *testing.T, e *fakeEngine) (*Registry, *recorder, *pipes) {
	t.Helper()
	return fleetOf(t, map[string]http.Handler{"w:1": e}, Options{Static: []Spec{{ID: "w", URL: "w:1"}}})
}

// sockets is a /server_info with load sockets.
func sockets(model string, ranks, base int) string {
	return fmt.Sprintf(`{"served_model_name":%q,"disaggregation_mode":"null","dp_size":%d,"kv_events":{"publisher":"zmq","endpoint_host":"*",`+
		`"endpoint_port_base":1000,"dp_size":%d,"load_endpoint_port_base":%d}}`, model, ranks, ranks, base)
}

// hang answers nothing until the peer has gone.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// learned lets the registry take in what engines answered at once.
func learned() {
	synctest.Wait()
	elapse(answersPause)
}

// elapse lets time pass, and what it brings about happen.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestProbe_EngineWithLoadSocketsIsFedOverZMQ(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := saying(sockets("m1", 2, 5559))
		r, s, _ := autoFed(t, e)
		synctest.Wait()
		if w := s.sets[0][0]; w.Transport != load.TransportUnspecified || w.TransportReason != asking || s.note("w") != asking || len(s.ends()) != 0 {
			t.Errorf("before the answer: %+v, note %q, targets %q", w, s.note("w"), s.ends())
		}
		learned()
		reg := registration(t, r, "w")
		want := load.Worker{ID: "w", URL: "http://w:1", Origin: "w:1", Role: load.RoleRegular, Models: []string{"m1"}, ExpectedRanks: 2,
			Transport: load.TransportZMQ, TransportReason: "zmq: the engine advertises load port 5559"}
		if !reg.Worker.Equal(want) || reg.State != load.RegistrationNotNeeded || reg.Reason != "" || reg.ProbeError != "" {
			t.Errorf("%+v, want %+v that needs no lease", reg, want)
		}
		if got := s.ends(); !slices.Equal(got, []string{"w 0 w:5559", "w 1 w:5560"}) || s.note("w") != "" || len(s.sets) != 2 || len(s.targets) != 2 {
			t.Errorf("targets %q, note %q after %d sets and %d targets", got, s.note("w"), len(s.sets), len(s.targets))
		}
		elapse(time.Minute)
		if len(e.seen()) != 0 {
			t.Error("an engine that is fed over ZMQ was asked to push as well (rule ID6)")
		}
		if len(s.sets) != 2 || len(s.targets) != 2 {
			t.Errorf("%d sets and %d targets, want no more while nothing changes", len(s.sets), len(s.targets))
		}
		if figure(t, r, "registered_transports", "transport=zmq") != 1 || figure(t, r, "server_info_probes_total", "outcome=answered") != float64(len(e.asked())) {
			t.Error("metrics do not show it")
		}
	})
}

func TestProbe_EngineWithoutLoadSocketsPushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := saying(`{"dp_size":4,"disaggregation_mode":"prefill"}`)
		r, s, _ := autoFed(t, e)
		learned()
		reg := registration(t, r, "w")
		if w := reg.Worker; w.Transport != load.TransportPush || w.Role != load.RolePrefill || w.ExpectedRanks != 4 ||
			w.TransportReason != "push: the engine advertises no load port" || reg.State != load.RegistrationLeased {
			t.Errorf("%+v, want it leased as a prefill worker of 4 ranks", reg)
		}
		if len(e.seen()) != 1 || len(s.ends()) != 0 {
			t.Errorf("%d requests to push, targets %q", len(e.seen()), s.ends())
		}
	})
}

func TestProbe_AsksEachIntervalWithJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := saying(sockets("m1", 1, 5559))
		autoFed(t, e)
		elapse(20 * time.Minute)
		asked := e.asked()
		gaps := map[time.Duration]bool{}
		for i := 1; i < len(asked); i++ {
			gap := asked[i].Sub(asked[i-1])
			gaps[gap] = true
			if gap < 9*time.Second || gap >= 11*time.Second {
				t.Fatalf("asked after %v, want 9 to 11 s", gap)
			}
		}
		if len(asked) < 109 || len(gaps) < len(asked)/2 {
			t.Errorf("%d times with %d different gaps in 20 minutes", len(asked), len(gaps))
		}
	})
}

// What an engine that does not say what it is gets, and when.
func TestProbe_EachFailure(t *testing.T) {
	const never = time.Hour
	say := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for _, tt := range []struct {
		name   string
		info   http.HandlerFunc // nil: nobody is there
		least  time.Duration    // until it pushes
		most   time.Duration
		reason string
	}{
		{"401 (case K9)", status(401), 0, 0, "HTTP 401: the engine wants its API key for /server_info: name a file that holds it as api_key_file"},
		{"403", status(403), 0, 0, "HTTP 403"},
		{"404", status(404), 0, 0, "HTTP 404: the engine has no /server_info"},
		{"405", status(405), 0, 0, "HTTP 405"},
		{"418", status(418), 0, 0, "HTTP 418"},
		{"501", status(501), 0, 0, "HTTP 501"},
		{"redirect to itself (case K1)", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, 0, 0, "HTTP 302: redirects are not followed"},
		{"HTML with status 200 (case K9)", say("<html>502</html>"), 0, 0, "HTTP 200: /server_info is no JSON object"},
		{"half an object", say(`{"dp_size":2`), 0, 0, "HTTP 200: /server_info is no JSON object"},
		{"a huge one", say(`{"a":"` + strings.Repeat("x", maxInfoBytes) + `"}`), 0, 0, "HTTP 200: /server_info is larger than any engine's"},
		{"no answer", hang, 2 * time.Second, 2 * time.Second, "the engine does not answer in time"},
		{"a byte a second (case K1)", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "{")
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, " ")
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
				case <-time.After(time.Second):
				}
			}
		}, 2 * time.Second, 3 * time.Second, "the engine does not answer in time"},
		{"503", status(503), 15 * time.Second, 17 * time.Second, "HTTP 503: the engine cannot answer /server_info"},
		{"429", status(429), 15 * time.Second, 21 * time.Second, "HTTP 429"},
		{"connection cut", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 15 * time.Second, 17 * time.Second, "the connection closed without an answer"},
		{"connection refused", nil, never, never, "connection refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &fakeEngine{}
				e.informWith(tt.info)
				engines := map[string]http.Handler{}
				if tt.info != nil {
					engines["w:1"] = e
				}
				r, s, _ := fleetOf(t, engines, Options{Static: []Spec{{ID: "w", URL: "w:1"}}})
				// One nanosecond before the earliest moment, and after the latest.
				elapse(max(0, tt.least-1))
				synctest.Wait()
				if reg := registration(t, r, "w"); tt.least > 0 && (reg.Worker.Transport != load.TransportUnspecified || reg.State != load.RegistrationPending) {
					t.Errorf("%+v after %v, want it not chosen yet", reg, tt.least)
				}
				if tt.most == never {
					if reg := registration(t, r, "w"); reg.Reason != asking+": "+tt.reason || s.note("w") != reg.Reason || reg.ProbeError != tt.reason {
						t.Errorf("%+v with note %q, want the reason %q", reg, s.note("w"), tt.reason)
					}
					return
				}
				elapse(tt.most - max(0, tt.least-1))
				learned()
				reg := registration(t, r, "w")
				if w := reg.Worker; w.Transport != load.TransportPush || w.Role != load.RoleRegular || !strings.HasPrefix(w.TransportReason, "push: "+tt.reason) {
					t.Errorf("%+v after %v, want it to push because %q", reg, tt.most, tt.reason)
				}
				if reg.State != load.RegistrationLeased || !strings.HasPrefix(reg.ProbeError, tt.reason) {
					t.Errorf("%+v, want it leased, and why /server_info failed", reg)
				}
			})
		})
	}
}

// Case K2: an engine that is busy for five minutes does not lose what was known of it.
func TestProbe_FailureTakesNothingAway(t *testing.T) {
	for _, tt := range []struct{ name, info string }{
		{"zmq", sockets("m1", 4, 5559)}, {"push", `{"dp_size":4,"disaggregation_mode":"decode"}`},
	} {
		for _, trouble := range []struct {
			name, shown string
			info        http.HandlerFunc
		}{
			{"hangs", "the engine does not answer in time", hang},
			{"fails", "HTTP 500: the engine cannot answer /server_info: tried again soon", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }},
			{"talks nonsense", "HTTP 200: /server_info is no JSON object: check that the address is an engine's own",
				func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"dp_size":1`) }},
		} {
			t.Run(tt.name+" "+trouble.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := saying(tt.info)
					var open, most atomic.Int32
					r, s, _ := autoFed(t, e)
					elapse(time.Minute)
					before, sets, targets := registration(t, r, "w"), len(s.sets), len(s.targets)
					e.informWith(func(w http.ResponseWriter, r *http.Request) {
						most.Store(max(most.Load(), open.Add(1)))
						defer open.Add(-1)
						trouble.info(w, r)
					})
					elapse(5 * time.Minute)
					during := registration(t, r, "w")
					if !during.Worker.Equal(before.Worker) || during.State != before.State || during.Reason != before.Reason {
						t.Errorf("%+v, want it as before: %+v", during, before)
					}
					if during.ProbeError != trouble.shown {
						t.Errorf("probe error %q, want %q", during.ProbeError, trouble.shown)
					}
					if len(s.sets) != sets || len(s.targets) != targets || s.note("w") != "" {
						t.Errorf("%d sets, %d targets, note %q; want nothing new", len(s.sets)-sets, len(s.targets)-targets, s.note("w"))
					}
					if most.Load() != 1 {
						t.Errorf("%d requests at once", most.Load())
					}
					e.says(tt.info)
					elapse(13 * time.Second)
					if after := registration(t, r, "w"); after.ProbeError != "" || len(s.sets) != sets {
						t.Errorf("%+v after it answers again", after)
					}
				})
			})
		}
	}
}

func TestProbe_NudgesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := saying(sockets("m1", 1, 5559))
		r, _, _ := autoFed(t, e)
		elapse(5 * time.Second)
		r.Probe("w")
		r.Probe("nobody")
		synctest.Wait()
		if n := len(e.asked()); n != 2 {
			t.Fatalf("asked %d times, want again at once", n)
		}
		for range 6000 { // doubts come with every report
			r.Probe("w")
			elapse(10 * time.Millisecond)
		}
		asked := e.asked()
		for i := 2; i < len(asked); i++ {
			if gap := asked[i].Sub(asked[i-1]); gap < nudgeFloor {
				t.Errorf("asked after %v, want at least %v", gap, nudgeFloor)
			}
		}
		if len(asked) > 12 {
			t.Errorf("asked %d times in a minute of doubts", len(asked))
		}
		elapse(30 * time.Second)
		for n := len(e.asked()); len(e.asked()) == n; { // the next one is 9 s away
			elapse(10 * time.Millisecond)
		}
		elapse(nudgeFloor)
		n := len(e.asked())
		r.Probe("w")
		synctest.Wait()
		if got := len(e.asked()); got != n+1 {
			t.Errorf("a doubt after quiet: asked %d times, want at once", got-n)
		}
	})
}

// An engine that asks for patience gets it, up to a minute.
func TestProbe_RetryAfter(t *testing.T) {
	for _, tt := range []struct {
		header      string
		least, most time.Duration
	}{
		{"1", time.Second, 2 * time.Second}, {"30", 30 * time.Second, 31 * time.Second}, {"86400", time.Minute, time.Minute + time.Second},
		{"soon", 0, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := &fakeEngine{}
			e.informWith(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", tt.header)
				w.WriteHeader(503)
			})
			autoFed(t, e)
			elapse(90 * time.Second)
			if asked := e.asked(); len(asked) < 2 || asked[1].Sub(asked[0]) < tt.least || asked[1].Sub(asked[0]) >= tt.most {
				t.Errorf("Retry-After %s: asked at %v, want the second time after %v to %v", tt.header, asked, tt.least, tt.most)
			}
		})
	}
}

// An engine that was away is asked as soon as it is back, and until then rarely (case K8).
func TestProbe_EngineThatComesUpIsFound(t *testing.T) {
	for _, away := range []time.Duration{time.Second, time.Minute, time.Hour} {
		t.Run(away.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, s, n := fleetOf(t, nil, Options{Static: []Spec{{ID: "w", URL: "w:1"}}})
				elapse(away)
				n.mu.Lock()
				tries := n.dials["w:1"]
				n.mu.Unlock()
				if most := 20 + int(away/(2500*time.Millisecond)); tries > most {
					t.Errorf("%d tries in %v, want at most %d", tries, away, most)
				}
				t.Cleanup(n.serve("w:1", saying(sockets("m1", 1, 5559))))
				elapse(6 * time.Second)
				if registration(t, r, "w").Worker.Transport != load.TransportZMQ || len(s.ends()) != 1 {
					t.Errorf("%+v, targets %q", registration(t, r, "w"), s.ends())
				}
			})
		})
	}
}

// A worker that pushes is asked to push within two seconds of its engine's return, whatever /server_info does.
func TestProbe_DoesNotDelayARestartedPusher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, e := newPipes(), saying(`{}`)
		stop := n.serve("w:1", e)
		r := mustNew(t, Options{Static: []Spec{{ID: "w", URL: "w:1"}}})
		n.use(r)
		start(t, r)
		elapse(57 * time.Second)
		stop()
		r.Nudge("w")
		elapse(900 * time.Millisecond)
		again := &fakeEngine{}
		again.informWith(hang)
		t.Cleanup(n.serve("w:1", again))
		elapse(2 * time.Second)
		if len(again.seen()) == 0 {
			t.Error("not asked within 2 s")
		}
	})
}

// The key of /server_info is not the one of /v1/start_reporting. Case N1: neither is shown.
func TestProbe_HasItsOwnKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		admin, api := filepath.Join(dir, "admin"), filepath.Join(dir, "api")
		for path, key := range map[string]string{admin: "sentinel-admin", api: "sentinel-wrong"} {
			if err := os.WriteFile(path, []byte(key), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		e := &fakeEngine{key: "sentinel-admin"}
		e.informWith(func(w http.ResponseWriter, r *http.Request) {
			if got := r.Header.Get("Authorization"); got != "Bearer sentinel-api" {
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = io.WriteString(w, got)
				return
			}
			_, _ = io.WriteString(w, `{"api_key":"sentinel-1","admin_api_key":"sentinel-2","dp_size":3,"server_args":{"api_key":"sentinel-1"}}`)
		})
		var log bytes.Buffer
		r, s, _ := fleetOf(t, map[string]http.Handler{"w:1": e}, Options{
			Static: []Spec{{ID: "w", URL: "w:1", TokenFile: admin, APIKeyFile: api}},
			Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
		learned()
		var shown strings.Builder
		look := func() load.Registration {
			reg := registration(t, r, "w")
			fmt.Fprintln(&shown, reg, s.note("w"), s.sets, s.targets)
			return reg
		}
		if reg := look(); reg.ProbeError != "HTTP 401: the engine does not take the API key in "+api+" for /server_info: put its own there" ||
			reg.State != load.RegistrationLeased {
			t.Errorf("%+v with a wrong key", reg)
		}
		if err := os.WriteFile(api, []byte("sentinel-api\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		elapse(12 * time.Second)
		if reg := look(); reg.ProbeError != "" || reg.Worker.ExpectedRanks != 3 {
			t.Errorf("%+v with the right key", reg)
		}
		if err := os.Remove(api); err != nil {
			t.Fatal(err)
		}
		elapse(12 * time.Second)
		if reg := look(); !strings.Contains(reg.ProbeError, "token file "+api) || reg.Worker.ExpectedRanks != 3 {
			t.Errorf("%+v without the file", reg)
		}
		for _, m := range r.Metrics() {
			m.Collect(func(v float64, labels ...load.Label) { fmt.Fprintln(&shown, m.Name, m.Help, v, labels) })
		}
		if all := shown.String() + log.String(); strings.Contains(all, "sentinel") {
			t.Errorf("a key shows in\n%s", all)
		}
	})
}

// An episode of trouble is one line, and a fleet of older engines is no trouble.
func TestProbe_LogsEpisodes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		info  http.HandlerFunc
		level string
	}{
		{"hangs", hang, "WARN"},
		{"old engine", http.NotFound, "INFO"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &fakeEngine{}
				e.informWith(tt.info)
				var log bytes.Buffer
				fleetOf(t, map[string]http.Handler{"w:1": e}, Options{Static: []Spec{{ID: "w", URL: "w:1"}}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				elapse(10 * time.Minute)
				e.says(`{}`)
				elapse(time.Minute)
				synctest.Wait()
				if n := strings.Count(log.String(), "worker=w "); n != 2 || strings.Count(log.String(), "level="+tt.level+` msg="the engine does not say`) != 1 {
					t.Errorf("want one line about the trouble and one about its end:\n%s", &log)
				}
			})
		})
	}
}
