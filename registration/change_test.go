package registration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// Case E4: fewer ranks are one change, everywhere.
func TestProbe_FewerRanksAreOneChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := saying(sockets("m1", 8, 5559))
		_, s, _ := autoFed(t, e)
		learned()
		before := s.targets[len(s.targets)-1]
		sets, targets := len(s.sets), len(s.targets)
		e.says(sockets("m1", 2, 5559))
		elapse(12 * time.Second)
		if len(s.sets) != sets+1 || len(s.targets) != targets+1 {
			t.Fatalf("%d sets and %d targets, want one each", len(s.sets)-sets, len(s.targets)-targets)
		}
		if w := s.sets[sets][0]; w.ExpectedRanks != 2 {
			t.Errorf("%d ranks are expected, want 2", w.ExpectedRanks)
		}
		if got := s.targets[targets]; !slices.Equal(got, before[:2]) {
			t.Errorf("targets %+v, want the first two as they were: %+v", got, before[:2])
		}
	})
}

func TestProbe_ChangedAnswerIsAskedAboutAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := saying(sockets("m1", 8, 5559))
		autoFed(t, e)
		elapse(time.Minute)
		e.says(sockets("m1", 2, 5559))
		n := len(e.asked())
		elapse(13 * time.Second)
		if asked := e.asked(); len(asked) < n+2 || asked[n+1].Sub(asked[n]) != nudgeFloor {
			t.Errorf("asked %d times, want again %v after the change", len(asked)-n, nudgeFloor)
		}
	})
}

// A restarted engine may be another (cases A4 and L4): whatever was taken from the one before is not the new one's.
func TestProbe_AnotherEngineAtTheSameAddress(t *testing.T) {
	for _, tt := range []struct {
		name          string
		before, after string
		want          string
	}{
		{"another model", sockets("m1", 1, 5559), sockets("m2", 1, 5559), `plain zmq ["m2"] 1`},
		{"another role", sockets("m1", 1, 5559), strings.Replace(sockets("m1", 1, 5559), `"null"`, `"decode"`, 1), `decode zmq ["m1"] 1`},
		{"another port", sockets("m1", 1, 5559), sockets("m1", 1, 5600), `plain zmq ["m1"] 0`},
		{"no load sockets any more", sockets("m1", 1, 5559), `{"served_model_name":"m1"}`, `plain push [] 0`},
		{"load sockets now", `{"served_model_name":"m1","disaggregation_mode":"null"}`, sockets("m1", 1, 5559), `plain zmq ["m1"] 0`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := saying(tt.before)
				r, s, _ := autoFed(t, e)
				learned()
				e.says(tt.after)
				r.Nudge("w") // its stream has ended
				elapse(nudgeFloor)
				learned()
				w := registration(t, r, "w").Worker
				generation := uint64(0)
				if ends := s.targets[len(s.targets)-1]; len(ends) > 0 {
					generation = ends[0].Generation
				}
				if got := fmt.Sprintf("%s %s %q %d", w.Role, w.Transport, w.Models, generation); got != tt.want {
					t.Errorf("%s, want %s", got, tt.want)
				}
			})
		})
	}
}

// An engine that contradicts its registration is not fed over ZMQ, and is as soon as it agrees.
func TestProbe_ContradictionTakesTheTargetsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := saying(sockets("m1", 1, 5559))
		r, s, _ := fleetOf(t, map[string]http.Handler{"w:1": e}, Options{Static: []Spec{{ID: "w", URL: "w:1", Models: []string{"m1"}}}})
		learned()
		if len(s.ends()) != 1 {
			t.Fatalf("targets %q", s.ends())
		}
		e.says(sockets("m2", 1, 5559))
		elapse(12 * time.Second)
		const why = `the engine serves model "m2" and "m1" is registered: correct the models`
		if reg := registration(t, r, "w"); len(s.ends()) != 0 || s.note("w") != why || reg.Reason != why || reg.Worker.Transport != load.TransportZMQ {
			t.Errorf("%+v, targets %q, note %q", reg, s.ends(), s.note("w"))
		}
		e.says(sockets("m1", 1, 5559))
		elapse(12 * time.Second)
		if len(s.ends()) != 1 || s.note("w") != "" {
			t.Errorf("targets %q, note %q", s.ends(), s.note("w"))
		}
	})
}

// Case E7: a rank without a socket says why, and no longer does when it has one.
func TestProbe_RanksThatAreNotDialledSayWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := saying(sockets("m1", 4, 65533))
		_, s, _ := autoFed(t, e)
		learned()
		if got := s.ends(); !slices.Equal(got, []string{"w 0 w:65533", "w 1 w:65534", "w 2 w:65535"}) || s.rankNote("w", 2) != "" ||
			s.rankNote("w", 3) != "load port 65536 is beyond 65535: start the engine with a lower load port" {
			t.Errorf("targets %q, notes %q", got, s.ranks)
		}
		e.says(sockets("m1", 4, 5559))
		elapse(12 * time.Second)
		if len(s.ends()) != 4 || s.rankNote("w", 3) != "" {
			t.Errorf("targets %q, notes %q", s.ends(), s.ranks)
		}
	})
}

// What is known belongs to the address: it survives every other change of the configuration.
func TestProbe_WhatIsKnownSurvivesAReload(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("k"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := Spec{ID: "w", URL: "w:1"}
	for _, tt := range []struct {
		name string
		edit func(*Spec)
		kept bool
	}{
		{"zone", func(s *Spec) { s.Zone = "z" }, true},
		{"role", func(s *Spec) { s.Role = load.RoleRegular }, true},
		{"expected ranks", func(s *Spec) { s.ExpectedRanks = 2 }, true},
		{"API key", func(s *Spec) { s.APIKeyFile = key }, true},
		{"token", func(s *Spec) { s.TokenFile = key }, true},
		{"address", func(s *Spec) { s.URL = "w:2" }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := saying(sockets("m1", 2, 5559))
				r, s, _ := fleetOf(t, map[string]http.Handler{"w:1": e}, Options{Static: []Spec{base}})
				learned()
				e.informWith(hang)
				changed := base
				tt.edit(&changed)
				if err := r.SetStatic([]Spec{changed}); err != nil {
					t.Fatal(err)
				}
				if w := registration(t, r, "w").Worker; (w.Transport == load.TransportZMQ) != tt.kept || (len(s.ends()) == 2) != tt.kept {
					t.Errorf("%+v, targets %q", w, s.ends())
				}
			})
		})
	}
}

// Case K7: engines of the current list are asked, and no others.
func TestProbe_StopsWithItsWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := saying(sockets("m1", 1, 5559)), saying(sockets("m1", 1, 5559))
		r, s, _ := fleetOf(t, map[string]http.Handler{"a:1": a, "b:1": b}, Options{Static: []Spec{{URL: "a:1"}}})
		for i := range 100 {
			if err := r.SetStatic([]Spec{{URL: []string{"b:1", "a:1"}[i%2]}}); err != nil {
				t.Fatal(err)
			}
			elapse(50 * time.Millisecond)
		}
		learned()
		n, m := len(a.asked()), len(b.asked())
		elapse(time.Minute)
		if len(b.asked()) != m || len(a.asked()) < n+5 || len(a.asked()) > n+7 {
			t.Errorf("asked %d and %d times more", len(a.asked())-n, len(b.asked())-m)
		}
		if got := s.ends(); !slices.Equal(got, []string{"a:1 0 a:5559"}) {
			t.Errorf("targets %q", got)
		}
	})
}
