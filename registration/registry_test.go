package registration

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/loadmonitor/loadmonitor/load"
)

// quiet is a registry whose engines all refuse connections, so that only the set matters.
func quiet(t *testing.T, o Options) (*Registry, *recorder) {
	t.Helper()
	s := newSink()
	o.Sink = s
	r := mustNew(t, o)
	newPipes().use(r)
	return r, s
}

func TestRun_EmptySetIsToldToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := quiet(t, Options{})
		if s.workers() != "none yet" {
			t.Error("New told the sink")
		}
		start(t, r)
		synctest.Wait()
		if len(s.sets) != 1 || s.workers() != "" {
			t.Errorf("%d sets, newest %q; want one empty set", len(s.sets), s.workers())
		}
	})
}

func TestRun_TwiceIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := quiet(t, Options{})
		start(t, r)
		synctest.Wait()
		if err := r.Run(t.Context()); err == nil {
			t.Error("a second Run was accepted")
		}
	})
}

func TestRegister_IsKnownToTheSinkWhenItReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := quiet(t, Options{Static: []Spec{{URL: "b:1"}}})
		if _, err := r.Register(load.Worker{URL: "early:1"}); err != nil { // before Run
			t.Fatal(err)
		}
		start(t, r)
		synctest.Wait()
		got, err := r.Register(load.Worker{URL: "HTTP://C:1/", Models: []string{"m2", "m1"}, Zone: "z", ExpectedRanks: 4, Conflict: "x"})
		if err != nil {
			t.Fatal(err)
		}
		want := load.Worker{ID: "c:1", URL: "http://c:1", Origin: "c:1", Role: load.RoleRegular, Models: []string{"m1", "m2"}, Zone: "z",
			ExpectedRanks: 4, TransportReason: asking}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if s.workers() != "b:1 c:1 early:1" {
			t.Errorf("sink has %q", s.workers())
		}
		if reg := registration(t, r, "c:1"); reg.Source != SourceAPI {
			t.Errorf("%+v, want source api", reg)
		}
		before := len(s.sets)
		if _, err := r.Register(load.Worker{URL: "c:1", Models: []string{"m1", "m2"}, Zone: "z", ExpectedRanks: 4}); err != nil || len(s.sets) != before {
			t.Errorf("the same again: %v, %d more sets", err, len(s.sets)-before)
		}
		if err := r.Deregister("c:1"); err != nil || s.workers() != "b:1 early:1" {
			t.Errorf("deregister: %v, sink has %q", err, s.workers())
		}
	})
}

func TestRegister_Refusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := quiet(t, Options{Static: []Spec{{ID: "a", URL: "h:1"}}, MaxWorkers: 2, Discoverers: map[string]Discoverer{
			"k8s": discovers([]Spec{{ID: "k", URL: "k:1"}}),
		}})
		start(t, r)
		synctest.Wait()
		for _, tt := range []struct {
			name string
			w    load.Worker
			want error
		}{
			{"no url", load.Worker{ID: "x"}, load.ErrWorkerSpec},
			{"bad port", load.Worker{URL: "h:0"}, load.ErrWorkerSpec},
			{"id of the configuration", load.Worker{ID: "a", URL: "h:2"}, load.ErrConfigured},
			{"address of the configuration", load.Worker{ID: "b", URL: "http://H:1/"}, load.ErrConfigured},
			{"same as the configuration", load.Worker{ID: "a", URL: "h:1"}, load.ErrConfigured},
			{"id of a discovered worker", load.Worker{ID: "k", URL: "h:2"}, load.ErrConfigured},
			{"too many", load.Worker{URL: "h:3"}, load.ErrTooManyWorkers},
		} {
			if _, err := r.Register(tt.w); !errors.Is(err, tt.want) {
				t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
			}
		}
		if err := r.Deregister("a"); !errors.Is(err, load.ErrConfigured) {
			t.Errorf("deregister a configured worker: %v", err)
		}
		if err := r.Deregister("nobody"); !errors.Is(err, load.ErrUnknownWorker) {
			t.Errorf("deregister nobody: %v", err)
		}
		if len(s.sets) != 1 || s.workers() != "a k" {
			t.Errorf("%d sets, newest %q; want the one of before", len(s.sets), s.workers())
		}
	})
}

// Case M4: refused names leave nothing behind.
func TestRegister_RefusedNamesLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := quiet(t, Options{MaxWorkers: 1, Static: []Spec{{URL: "a:1"}}})
		start(t, r)
		synctest.Wait()
		heap := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := heap()
		for i := range 20000 {
			name := fmt.Sprintf("w%d:1", i)
			if _, err := r.Register(load.Worker{URL: name}); !errors.Is(err, load.ErrTooManyWorkers) {
				t.Fatal(err)
			}
			_ = r.Deregister(name)
			r.Nudge(name)
		}
		if grown := int64(heap()) - int64(before); grown > 4<<20 {
			t.Errorf("heap grew by %d bytes", grown)
		}
		if len(r.api)+r.leaseLoops.count()+r.probeLoops.count() != 0 || len(r.entries) != 1 {
			t.Errorf("%d, %d and %d entries are kept", len(r.api), r.leaseLoops.count(), len(r.entries))
		}
	})
}

// Rule ID3: both workers of one address are shown with both names, neither is asked, and the conflict ends with its cause.
func TestConflict_NeitherIsRegistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s, e := newPipes(), newSink(), &fakeEngine{}
		t.Cleanup(n.serve("h:1", e))
		r := mustNew(t, Options{Sink: s})
		n.use(r)
		start(t, r)
		for _, id := range []string{"b", "a"} {
			if _, err := r.Register(load.Worker{ID: id, URL: "h:1", Role: load.RoleRegular, Transport: load.TransportPush}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		asked, probed := len(e.seen()), len(e.asked())
		time.Sleep(time.Minute)
		if len(e.seen()) != asked || len(e.asked()) != probed {
			t.Errorf("the engine was asked %d and %d times during the conflict", len(e.seen())-asked, len(e.asked())-probed)
		}
		for _, id := range []string{"a", "b"} {
			reg := registration(t, r, id)
			if reg.State != load.RegistrationConflict || !strings.Contains(reg.Reason, `"a" at h:1 (api) and "b" at h:1 (api)`) ||
				reg.Worker.Conflict != reg.Reason || s.note(id) != reg.Reason {
				t.Errorf("%+v with note %q, want a conflict that names both", reg, s.note(id))
			}
		}
		if err := r.Deregister("b"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if reg := registration(t, r, "a"); reg.State != load.RegistrationLeased || s.note("a") != "" {
			t.Errorf("%+v with note %q, want it leased", reg, s.note("a"))
		}
	})
}

func TestDeregister_ByTheNameShownInAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiscoverer()
		r, s := quiet(t, Options{Discoverers: map[string]Discoverer{"k8s": d}})
		start(t, r)
		d.sets <- nil
		if _, err := r.Register(load.Worker{ID: "w", URL: "h:1"}); err != nil {
			t.Fatal(err)
		}
		d.sets <- []Spec{{ID: "w", URL: "h:2"}}
		synctest.Wait()
		if s.workers() != "w@h:1 w@h:2" {
			t.Fatalf("sink has %q", s.workers())
		}
		if err := r.Deregister("w@h:2"); !errors.Is(err, load.ErrConfigured) {
			t.Errorf("deregister the discovered one: %v", err)
		}
		if err := r.Deregister("w@h:1"); err != nil || s.workers() != "w" {
			t.Errorf("deregister: %v, sink has %q", err, s.workers())
		}
	})
}

// A worker that is fed in another way needs no lease (rule ID6).
func TestTransport_OnlyPushIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, e := newPipes(), &fakeEngine{}
		t.Cleanup(n.serve("h:1", e))
		r := mustNew(t, Options{Static: []Spec{{ID: "w", URL: "h:1", Role: load.RoleRegular, Transport: load.TransportZMQ}}})
		n.use(r)
		start(t, r)
		time.Sleep(time.Minute)
		if reg := registration(t, r, "w"); reg.State != load.RegistrationNotNeeded || len(e.seen()) != 0 {
			t.Errorf("%+v, asked %d times", reg, len(e.seen()))
		}
		if err := r.SetStatic([]Spec{{ID: "w", URL: "h:1", Role: load.RoleRegular, Transport: load.TransportPush}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if reg := registration(t, r, "w"); reg.State != load.RegistrationLeased {
			t.Errorf("%+v, want it leased over push", reg)
		}
	})
}

// What makes the aggregator start a worker anew ends the engine's stream, so the engine must be asked again at once; what
// does not must leave the lease alone.
func TestChange_AsksAgainOnlyWhenTheWorkerStartsAnew(t *testing.T) {
	base := Spec{ID: "w", URL: "h:1", Role: load.RoleRegular, Transport: load.TransportPush, Models: []string{"m1"}}
	for _, tt := range []struct {
		name  string
		edit  func(*Spec)
		again bool
	}{
		{"nothing", func(*Spec) {}, false},
		{"zone", func(s *Spec) { s.Zone = "z" }, false},
		{"expected ranks", func(s *Spec) { s.ExpectedRanks = 4 }, false},
		{"role", func(s *Spec) { s.Role = load.RoleDecode }, true},
		{"models", func(s *Spec) { s.Models = []string{"m2"} }, true},
		{"address", func(s *Spec) { s.URL = "h:2" }, true},
		{"token file", func(s *Spec) { s.TokenFile = "/nowhere" }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, e := newPipes(), &fakeEngine{}
				t.Cleanup(n.serve("h:1", e))
				t.Cleanup(n.serve("h:2", e))
				r := mustNew(t, Options{Static: []Spec{base}})
				n.use(r)
				start(t, r)
				time.Sleep(2 * time.Second)
				changed := base
				tt.edit(&changed)
				before := registration(t, r, "w")
				if err := r.SetStatic([]Spec{changed}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				asked := len(e.seen()) + int(figure(t, r, "registration_attempts_total", "outcome=token_file"))
				if (asked == 2) != tt.again {
					t.Errorf("%d attempts after the change", asked)
				}
				if w := registration(t, r, "w").Worker; w.Equal(before.Worker) != (tt.name == "nothing" || tt.name == "token file") {
					t.Errorf("worker %+v after the change", w)
				}
			})
		})
	}
}

// Case K7: a hundred reloads that alternate two lists, then a broken one. Requests go to the current list only, and
// workers of both lists keep their lease.
func TestSetStatic_LoopsMatchTheCurrentList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := newPipes(), newSink()
		var lists [2][]Spec
		engines := make([]*fakeEngine, 30) // 0-9 only in the first list, 10-19 in both, 20-29 only in the second
		for i := range engines {
			engines[i] = &fakeEngine{}
			addr := fmt.Sprintf("w%02d:1", i)
			t.Cleanup(n.serve(addr, engines[i]))
			if i < 20 {
				lists[0] = append(lists[0], pushers(addr)...)
			}
			if i >= 10 {
				lists[1] = append(lists[1], pushers(addr)...)
			}
		}
		r := mustNew(t, Options{Sink: s, Static: lists[0]})
		n.use(r)
		start(t, r)
		for i := range 100 {
			time.Sleep(100 * time.Millisecond)
			if err := r.SetStatic(lists[(i+1)%2]); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.SetStatic([]Spec{{URL: "w00:1"}, {URL: "http://w00:1/"}}); !errors.Is(err, load.ErrWorkerSpec) {
			t.Errorf("a broken list: %v", err)
		}
		synctest.Wait()
		if got := strings.Fields(s.workers()); len(got) != 20 || got[0] != "w00:1" || got[19] != "w19:1" {
			t.Errorf("sink has %q, want the first list", s.workers())
		}
		if r.leaseLoops.count()+r.probeLoops.count() != 0 {
			t.Errorf("%d loops are still ending", r.leaseLoops.count())
		}
		for i := 10; i < 20; i++ {
			if posts := len(engines[i].seen()); posts > 4 {
				t.Errorf("shared worker %d was asked %d times in 10 s", i, posts)
			}
		}
		before := len(engines[25].seen())
		shared := len(engines[15].seen())
		time.Sleep(time.Minute)
		if len(engines[25].seen()) != before {
			t.Error("a worker that left is still asked")
		}
		if len(engines[15].seen()) < shared+12 || len(engines[5].seen()) < 12 {
			t.Error("a worker of the list is not renewed")
		}
		if n := figure(t, r, "leases_lost_total", ""); n != 0 {
			t.Errorf("%v leases were lost", n)
		}
	})
}

// Case A5: workers come and go while others do the same; what was removed is gone from the list, the sink and the loops.
func TestRegistry_ChurnEndsWithNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s, e := newPipes(), newSink(), &fakeEngine{}
		for i := range 8 {
			t.Cleanup(n.serve(fmt.Sprintf("w%d:1", i), e))
		}
		r := mustNew(t, Options{Sink: s})
		n.use(r)
		start(t, r)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				w := load.Worker{ID: fmt.Sprint("w", i), URL: fmt.Sprintf("w%d:1", i)}
				for range 100 {
					if _, err := r.Register(w); err != nil {
						t.Error(err)
					}
					r.Nudge(w.ID)
					w.Role = load.Role(1 + int(w.Role)%3)
					if _, err := r.Register(w); err != nil {
						t.Error(err)
					}
					_ = r.Registrations()
					if err := r.Deregister(w.ID); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		if s.workers() != "" || len(r.Registrations()) != 0 || len(r.entries)+r.leaseLoops.count()+r.probeLoops.count()+len(r.api) != 0 {
			t.Errorf("sink has %q, %d registrations, %d loops ending", s.workers(), len(r.Registrations()), r.leaseLoops.count())
		}
		asked := len(e.seen())
		time.Sleep(5 * time.Minute)
		if len(e.seen()) != asked {
			t.Error("a removed worker is still asked")
		}
		added, removed := figure(t, r, "registration_changes_total", "change=added"), figure(t, r, "registration_changes_total", "change=removed")
		if added != removed || added == 0 {
			t.Errorf("%v added, %v removed", added, removed)
		}
	})
}

// Rule LIFE1: renewals stop at once, and Run waits for every loop, one that hangs in a request included.
func TestRun_StopsAtOnceAndWaitsForLoops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s, e := newPipes(), newSink(), &fakeEngine{}
		t.Cleanup(n.serve("w:1", e))
		n.blackhole["hung:1"] = true
		r := mustNew(t, Options{Sink: s, Static: []Spec{{URL: "w:1"}, {URL: "hung:1"}}})
		n.use(r)
		stop := start(t, r)
		time.Sleep(time.Second)
		began := time.Now()
		stop()
		if took := time.Since(began); took != 0 {
			t.Errorf("Run returned after %v", took)
		}
		asked, probed, notes, sets := len(e.seen()), len(e.asked()), s.calls, len(s.sets)
		if _, err := r.Register(load.Worker{URL: "x:1"}); !errors.Is(err, load.ErrShuttingDown) {
			t.Errorf("register after Run: %v", err)
		}
		time.Sleep(time.Minute)
		if len(e.seen()) != asked || len(e.asked()) != probed || s.calls != notes || len(s.sets) != sets {
			t.Error("something went on after Run had returned")
		}
	})
}
