package registration

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// oneEngine runs a registry with one worker, "w", whose engine is e at w:1, inside the calling bubble.
func oneEngine(t *testing.T, e *fakeEngine, o Options) (r *Registry, s *recorder, n *pipes) {
	t.Helper()
	n, s = newPipes(), newSink()
	t.Cleanup(n.serve("w:1", e))
	o.Sink = s
	if o.Static == nil {
		o.Static = []Spec{{ID: "w", URL: "w:1", Role: load.RoleRegular, Transport: load.TransportPush}}
	}
	r = mustNew(t, o)
	n.use(r)
	start(t, r)
	return r, s, n
}

func TestLease_RequestSaysWhereHowOftenAndHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{}
		r, s, _ := oneEngine(t, e, Options{})
		synctest.Wait()
		posts := e.seen()
		if len(posts) != 1 {
			t.Fatalf("%d requests at once, want 1", len(posts))
		}
		want := fakePost{at: posts[0].at, host: "w:1", ip: "127.0.0.1", port: 50061, intervalMs: 1000, leaseMs: 15000, status: 200}
		if posts[0] != want {
			t.Errorf("request %+v, want %+v", posts[0], want)
		}
		reg := registration(t, r, "w")
		if reg.State != load.RegistrationLeased || reg.Reason != "" || reg.LastHTTPStatus != 200 || reg.Source != SourceConfig {
			t.Errorf("registration %+v, want it leased", reg)
		}
		if s.note("w") != "" {
			t.Errorf("note %q, want none", s.note("w"))
		}
	})
}

// Host carries the port even where the scheme implies it: the engine makes the worker's address of it (rule ID1).
func TestLease_HostCarriesDefaultPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, n := &fakeEngine{}, newPipes()
		t.Cleanup(n.serve("w:80", e))
		t.Cleanup(n.serve("[fd00::5]:80", e))
		r := mustNew(t, Options{Static: pushers("http://w", "fd00::5")}) // case L1
		n.use(r)
		start(t, r)
		synctest.Wait()
		hosts := map[string]bool{}
		for _, p := range e.seen() {
			hosts[p.host] = p.status == 200
		}
		if !hosts["w:80"] || !hosts["[fd00::5]:80"] || len(hosts) != 2 {
			t.Errorf("granted hosts %v, want w:80 and [fd00::5]:80", hosts)
		}
	})
}

func TestLease_RenewalsComeBeforeTheLimitAndAboveTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{}
		r, _, _ := oneEngine(t, e, Options{})
		time.Sleep(10 * time.Minute)
		posts := e.seen()
		for i := 1; i < len(posts); i++ {
			if gap := posts[i].at.Sub(posts[i-1].at); gap <= time.Second || gap >= 5*time.Second {
				t.Fatalf("renewal after %v, want it between the interval 1s and the limit 5s", gap)
			}
		}
		if n := figure(t, r, "leases_renewed_total", ""); int(n) != len(posts)-1 || len(posts) < 120 {
			t.Errorf("%v renewals counted for %d requests", n, len(posts))
		}
		if figure(t, r, "leases_granted_total", "") != 1 || figure(t, r, "leases_lost_total", "") != 0 {
			t.Error("want one grant and no loss")
		}
	})
}

// Each answer of the engine, and how soon it is asked again.
func TestLease_EachAnswer(t *testing.T) {
	const slow = 40 * time.Second
	for _, tt := range []struct {
		name        string
		answer      func(int, http.ResponseWriter)
		state       load.RegistrationState
		note        string
		least, most time.Duration // until the second request
	}{
		{"no lease in the answer", statusOnly(200), load.RegistrationLeased, "", 3 * time.Second, 5 * time.Second},
		{"short lease", body(`{"lease_ttl_ms":1000,"renew_after_ms":333}`), load.RegistrationRefused, "too short for the report interval", slow, time.Minute},
		{"not an engine", body("<html>"), load.RegistrationRefused, "not JSON", slow, time.Minute},
		{"redirect", redirect, load.RegistrationRefused, "HTTP 302: redirects", slow, time.Minute},
		{"400", statusOnly(400), load.RegistrationRefused, "HTTP 400", slow, time.Minute},
		{"401", statusOnly(401), load.RegistrationRefused, "HTTP 401: the engine wants its admin API key", slow, time.Minute},
		{"403", statusOnly(403), load.RegistrationRefused, "start the engine with one", slow, time.Minute},
		{"404", statusOnly(404), load.RegistrationRefused, "HTTP 404", slow, time.Minute},
		{"405", statusOnly(405), load.RegistrationRefused, "HTTP 405", slow, time.Minute},
		{"409", statusOnly(409), load.RegistrationRefused, "HTTP 409", 15 * time.Second, 16 * time.Second},
		{"422", statusOnly(422), load.RegistrationRefused, "HTTP 422", slow, time.Minute},
		{"429", statusOnly(429), load.RegistrationRetrying, "HTTP 429", 200 * time.Millisecond, 700 * time.Millisecond},
		{"429 with a time", after(429, "3"), load.RegistrationRetrying, "HTTP 429", 3 * time.Second, 3500 * time.Millisecond},
		{"429 with a long time", after(429, "86400"), load.RegistrationRetrying, "HTTP 429", time.Minute, time.Minute + time.Second},
		{"500", statusOnly(500), load.RegistrationRetrying, "HTTP 500", 200 * time.Millisecond, 700 * time.Millisecond},
		{"501", statusOnly(501), load.RegistrationRefused, "optional dependency", slow, time.Minute},
		{"503", statusOnly(503), load.RegistrationRetrying, "HTTP 503", 200 * time.Millisecond, 700 * time.Millisecond},
		{"503 with a time", after(503, "2"), load.RegistrationRetrying, "HTTP 503", 2 * time.Second, 2500 * time.Millisecond},
		{"connection cut", func(int, http.ResponseWriter) { panic(http.ErrAbortHandler) }, load.RegistrationRetrying, "closed without an answer", 200 * time.Millisecond, 700 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &fakeEngine{answer: tt.answer}
				r, s, _ := oneEngine(t, e, Options{})
				synctest.Wait()
				reg := registration(t, r, "w")
				if reg.State != tt.state || !strings.Contains(reg.Reason, tt.note) || (reg.Reason == "") != (tt.note == "") {
					t.Errorf("state %d, reason %q; want %d, %q", reg.State, reg.Reason, tt.state, tt.note)
				}
				if s.note("w") != reg.Reason {
					t.Errorf("note %q, want the reason %q", s.note("w"), reg.Reason)
				}
				time.Sleep(tt.least - time.Millisecond)
				synctest.Wait()
				if len(e.seen()) != 1 {
					t.Errorf("asked again within %v", tt.least)
				}
				time.Sleep(tt.most - tt.least + time.Millisecond)
				synctest.Wait()
				if len(e.seen()) < 2 {
					t.Errorf("not asked again within %v", tt.most)
				}
			})
		})
	}
}

func body(s string) func(int, http.ResponseWriter) {
	return func(_ int, w http.ResponseWriter) { _, _ = w.Write([]byte(s)) }
}

func after(status int, value string) func(int, http.ResponseWriter) {
	return func(_ int, w http.ResponseWriter) {
		w.Header().Set("Retry-After", value)
		w.WriteHeader(status)
	}
}

func redirect(_ int, w http.ResponseWriter) {
	w.Header().Set("Location", "/v1/start_reporting")
	w.WriteHeader(http.StatusFound)
}

// A lease that is not renewed runs out by our own clock, is counted once, and comes back.
func TestLease_RunsOutWithoutRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{}
		r, s, _ := oneEngine(t, e, Options{})
		synctest.Wait()
		granted := time.Now()
		e.answerWith(statusOnly(500))
		time.Sleep(14*time.Second + 900*time.Millisecond)
		if got := s.note("w"); got != "the renewal failed: HTTP 500: the engine failed: tried again soon" {
			t.Errorf("note %q while the lease lives", got)
		}
		if figure(t, r, "leases_lost_total", "") != 0 {
			t.Errorf("lost after %v", time.Since(granted))
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if got := s.note("w"); got != "the lease ran out: HTTP 500: the engine failed: tried again soon" {
			t.Errorf("note %q after the lease ran out", got)
		}
		time.Sleep(time.Minute)
		e.answerWith(nil)
		time.Sleep(6 * time.Second)
		if reg := registration(t, r, "w"); reg.State != load.RegistrationLeased || s.note("w") != "" {
			t.Errorf("%+v with note %q, want it leased again", reg, s.note("w"))
		}
		if lost, grants := figure(t, r, "leases_lost_total", ""), figure(t, r, "leases_granted_total", ""); lost != 1 || grants != 2 {
			t.Errorf("%v lost, %v granted; want 1 and 2", lost, grants)
		}
	})
}

// Case D6: time that goes back between a grant and what follows it, by more than a lease, makes nothing panic and no
// counter go down, and the lease runs out by the newest grant. (The clock that leases are measured by is monotonic, so
// only a defect could do this.)
func TestLease_TimeThatGoesBack(t *testing.T) {
	r := mustNew(t, Options{Sink: newSink()})
	spec := load.Worker{ID: "w", URL: "http://w:1", Origin: "w:1", Transport: load.TransportPush}
	l := newLease(r, &target{worker: spec}, &choice{worker: spec})
	read := func() [3]float64 {
		return [3]float64{
			figure(t, r, "leases_granted_total", ""), figure(t, r, "leases_renewed_total", ""), figure(t, r, "leases_lost_total", ""),
		}
	}
	now := time.Now()
	before := read()
	for _, back := range []time.Duration{0, time.Minute, time.Hour, -time.Hour, 0} {
		at := now.Add(-back).Round(0) // without the monotonic reading
		l.expire(at)
		p, ok := l.grant(answer{outcome: granted, http: http.StatusOK}, at, at)
		if !ok || !p.at.After(at) || !l.expires.Equal(at.Add(DefaultLease)) {
			t.Errorf("%v back: next at %v, lease until %v", back, p.at.Sub(at), l.expires.Sub(at))
		}
		after := read()
		for i, v := range after {
			if v < before[i] {
				t.Errorf("%v back: counters went from %v to %v", back, before, after)
			}
		}
		before = after
	}
	if before != [3]float64{2, 3, 1} { // the leap forward of an hour outlives a lease
		t.Errorf("granted, renewed and lost: %v", before)
	}
}

// A lease that runs out while its renewal hangs is not shown as held meanwhile.
func TestLease_IsNotShownPastItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{answer: body(`{"lease_ttl_ms":2000}`)}
		r, _, n := oneEngine(t, e, Options{})
		synctest.Wait()
		n.mu.Lock()
		n.blackhole["w:1"] = true
		n.mu.Unlock()
		e.answerWith(func(int, http.ResponseWriter) { time.Sleep(time.Minute) })
		time.Sleep(2*time.Second + time.Millisecond)
		if reg := registration(t, r, "w"); reg.State != load.RegistrationRetrying || !strings.Contains(reg.Reason, "the lease ran out") {
			t.Errorf("%+v, want a lease that ran out", reg)
		}
		time.Sleep(time.Minute)
		if reg := registration(t, r, "w"); reg.Reason != "the lease ran out: the engine does not answer in time" || reg.LastHTTPStatus != 200 {
			t.Errorf("%+v, want the reason of the last try and the status of the last answer", reg)
		}
	})
}

// An engine that was away for less than a second is asked again within the two that its load may be gone for, one that
// was away for long within seven.
func TestLease_EngineThatRestartsIsAskedSoon(t *testing.T) {
	for _, tt := range []struct {
		name         string
		away, within time.Duration
	}{
		{"short", 900 * time.Millisecond, 2 * time.Second},
		{"half a minute", 30 * time.Second, 6500 * time.Millisecond},
		{"an hour", time.Hour, 6500 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newPipes()
				e := &fakeEngine{}
				stop := n.serve("w:1", e)
				r := mustNew(t, Options{Static: []Spec{{ID: "w", URL: "w:1", Role: load.RoleRegular, Transport: load.TransportPush}}})
				n.use(r)
				start(t, r)
				time.Sleep(57 * time.Second)
				stop()
				r.Nudge("w") // its stream has ended
				time.Sleep(tt.away)
				again := &fakeEngine{}
				stop = n.serve("w:1", again)
				back := time.Now()
				time.Sleep(tt.within)
				synctest.Wait()
				if posts := again.seen(); len(posts) == 0 {
					t.Errorf("not asked within %v", tt.within)
				} else if took := posts[0].at.Sub(back); took > tt.within {
					t.Errorf("asked after %v, want within %v", took, tt.within)
				}
				t.Cleanup(stop)
			})
		})
	}
}

func TestLease_NudgeRenewsSoonButNeverStarvesReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{}
		r, _, _ := oneEngine(t, e, Options{})
		synctest.Wait()
		time.Sleep(2 * time.Second)
		r.Nudge("w")
		r.Nudge("nobody")
		synctest.Wait()
		if n := len(e.seen()); n != 2 {
			t.Fatalf("%d requests, want a renewal at once", n)
		}
		// Somebody nudges without end, as when an engine's stream is refused each time.
		for range 3000 {
			r.Nudge("w")
			time.Sleep(10 * time.Millisecond)
		}
		posts := e.seen()
		for i := 2; i < len(posts); i++ {
			if gap := posts[i].at.Sub(posts[i-1].at); gap < 1500*time.Millisecond {
				t.Errorf("renewed after %v, want at least one and a half report intervals", gap)
			}
		}
		if len(posts) > 11 {
			t.Errorf("%d requests in 30 s, want at most about 10 (case I10)", len(posts)-1)
		}
		// After a quiet renewal the next nudge counts in full again.
		time.Sleep(10 * time.Second)
		before := len(e.seen())
		time.Sleep(1500 * time.Millisecond)
		r.Nudge("w")
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if len(e.seen()) == before {
			t.Error("a nudge after quiet brought no renewal")
		}
	})
}

func TestLease_NudgeDoesNotShortenARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{answer: statusOnly(404)}
		r, _, _ := oneEngine(t, e, Options{})
		for range 300 {
			r.Nudge("w")
			time.Sleep(100 * time.Millisecond)
		}
		if n := len(e.seen()); n != 1 {
			t.Errorf("%d requests in 30 s, want 1", n)
		}
	})
}
