package registration

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// Case L4: who connected to a socket learns whether the worker's engine is behind the address still.
func TestConfirm_SaysInWhatTheEngineDiffers(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	say := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
	}
	same := sockets("m1", 2, 5559)
	for _, tt := range []struct {
		name   string
		models []string
		info   http.HandlerFunc
		want   string // part of the error; empty: none
	}{
		{"the same", nil, say(same), ""},
		{"something else changed", nil, say(strings.Replace(same, "{", `{"version":"2",`, 1)), ""},
		{"another model", nil, say(sockets("m2", 2, 5559)), `another engine answers at w:1: it serves model "m2", not "m1"`},
		{"another of the registered models", []string{"m1", "m2"}, say(sockets("m2", 2, 5559)), ""},
		{"none of the registered models", []string{"m1"}, say(sockets("m3", 2, 5559)), `another engine answers at w:1: the engine serves model "m3" and "m1" is registered`},
		{"another role", nil, say(strings.Replace(same, `"null"`, `"prefill"`, 1)), "another engine answers at w:1: it is prefill, not plain"},
		{"another port", nil, say(sockets("m1", 2, 5600)), "the engine at w:1 advertises other load sockets now: zmq: the engine advertises load port 5600"},
		{"fewer ranks", nil, say(sockets("m1", 1, 5559)), "advertises other load sockets now"},
		{"no load port", nil, say(`{"served_model_name":"m1","disaggregation_mode":"null"}`), `it serves model "", not "m1"`},
		{"no load port, registered model", []string{"m1"}, say(`{"served_model_name":"m1"}`), "the engine at w:1 publishes no load now: push: the engine advertises no load port"},
		{"hangs", nil, hang, "/server_info: the engine does not answer in time"},
		{"401", nil, status(401), "/server_info: HTTP 401: the engine wants its API key"},
		{"503", nil, status(503), "/server_info: HTTP 503"},
		{"not an engine", nil, say("<html>"), "/server_info: HTTP 200: /server_info is no JSON object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := saying(same)
				r, _, _ := fleetOf(t, map[string]http.Handler{"w:1": e}, Options{Static: []Spec{{ID: "w", URL: "w:1", Models: tt.models}}})
				learned()
				e.informWith(tt.info)
				err := r.Confirm(t.Context(), "w")
				if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("%v, want %q", err, tt.want)
				}
			})
		})
	}
}

// The answer that refuses is news as well: the worker is what its engine says, and then that is confirmed.
func TestConfirm_RefusalIsLearnedFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := saying(sockets("m1", 2, 5559))
		r, s, _ := autoFed(t, e)
		learned()
		e.says(sockets("m1", 2, 5600))
		if err := r.Confirm(t.Context(), "w"); err == nil {
			t.Error("sockets that are not advertised any more were confirmed")
		}
		learned()
		if got := s.ends(); !slices.Equal(got, []string{"w 0 w:5600", "w 1 w:5601"}) {
			t.Errorf("targets %q", got)
		}
		if err := r.Confirm(t.Context(), "w"); err != nil {
			t.Error(err)
		}
	})
}

// An answer speaks for the moment after the question: one that was on its way before does not count.
func TestConfirm_AsksAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := saying(sockets("m1", 1, 5559))
		r, _, _ := autoFed(t, e)
		learned()
		e.informWith(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Second)
			_, _ = io.WriteString(w, sockets("m1", 1, 5559))
		})
		r.Probe("w")
		elapse(1500 * time.Millisecond) // the request that the doubt brought about is half way
		n := len(e.asked())
		e.says(sockets("m2", 1, 5559))
		if err := r.Confirm(t.Context(), "w"); err == nil || !strings.Contains(err.Error(), "m2") {
			t.Errorf("%v, want what the engine says now", err)
		}
		if got := len(e.asked()); got != n+1 {
			t.Errorf("asked %d times, want once", got-n)
		}
	})
}

func TestConfirm_WithoutAnEngineToAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pusher, contrary := saying(`{}`), saying(sockets("m2", 1, 5559))
		r, _, _ := fleetOf(t, map[string]http.Handler{"p:1": pusher, "c:1": contrary}, Options{Static: []Spec{
			{ID: "p", URL: "p:1"}, {ID: "c", URL: "c:1", Models: []string{"m1"}}, {ID: "gone", URL: "g:1"},
		}})
		learned()
		if err := r.Confirm(t.Context(), "nobody"); !errors.Is(err, load.ErrUnknownWorker) {
			t.Errorf("unknown worker: %v", err)
		}
		for id, want := range map[string]string{"p": "not fed over ZMQ", "gone": "not fed over ZMQ", "c": `"m2"`} {
			if err := r.Confirm(t.Context(), id); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", id, err, want)
			}
		}
	})
}

func TestConfirm_EndsWithItsContextAndItsWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := saying(sockets("m1", 1, 5559))
		r, _, _ := autoFed(t, e)
		learned()
		e.informWith(hang)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := r.Confirm(ctx, "w"); err == nil || err.Error() != "the engine did not answer /server_info in time" {
			t.Errorf("context that ends: %v", err)
		}
		elapse(time.Minute)
		confirmed := make(chan error, 1)
		go func() { confirmed <- r.Confirm(t.Context(), "w") }()
		synctest.Wait()
		if err := r.SetStatic(nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		select {
		case err := <-confirmed:
			if !errors.Is(err, load.ErrWorkerRemoved) {
				t.Errorf("worker that is removed: %v", err)
			}
		default:
			t.Error("Confirm outlives its worker")
		}
	})
}
