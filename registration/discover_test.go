package registration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Case A3: an update without an address removes the worker, and whoever gets its address next is somebody else.
func TestDiscover_EmptyAddressRemoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiscoverer()
		r, s := quiet(t, Options{Discoverers: map[string]Discoverer{"k8s": d}})
		start(t, r)
		d.sets <- []Spec{{ID: "pod-1", URL: "10.9.0.5:30000", Models: []string{"m1"}}}
		synctest.Wait()
		if s.workers() != "pod-1" {
			t.Fatalf("sink has %q", s.workers())
		}
		d.sets <- []Spec{{ID: "pod-1"}}
		synctest.Wait()
		if s.workers() != "" {
			t.Errorf("sink has %q after the address went", s.workers())
		}
		d.sets <- []Spec{{ID: "pod-2", URL: "10.9.0.5:30000", Models: []string{"m2"}}}
		synctest.Wait()
		if s.workers() != "pod-2" || registration(t, r, "pod-2").Worker.Models[0] != "m2" {
			t.Errorf("sink has %q", s.workers())
		}
	})
}

func TestDiscover_InvalidEntryCostsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiscoverer()
		r, s := quiet(t, Options{Discoverers: map[string]Discoverer{"k8s": d}})
		start(t, r)
		d.sets <- []Spec{{URL: "a:1"}, {URL: "b:0"}, {URL: "c:1"}}
		synctest.Wait()
		if s.workers() != "a:1 c:1" || figure(t, r, "discovery_invalid_total", "") != 1 {
			t.Errorf("sink has %q, %v invalid", s.workers(), figure(t, r, "discovery_invalid_total", ""))
		}
	})
}

func TestDiscover_MoreThanAllowedAreLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := quiet(t, Options{MaxWorkers: 2, Static: []Spec{{URL: "z:1"}}, Discoverers: map[string]Discoverer{
			"k8s": discovers([]Spec{{URL: "b:1"}, {URL: "a:1"}}),
		}})
		start(t, r)
		synctest.Wait()
		if s.workers() != "a:1 z:1" || figure(t, r, "discovery_left_out", "") != 1 {
			t.Errorf("sink has %q, %v left out", s.workers(), figure(t, r, "discovery_left_out", ""))
		}
	})
}

// Rule LIFE1, case M5: the first set is whole, but one silent source does not hold it back for ever.
func TestDiscover_FirstPassWaitsForEverySource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, silent := newDiscoverer(), newDiscoverer()
		r, s := quiet(t, Options{Static: []Spec{{URL: "a:1"}}, Discoverers: map[string]Discoverer{"k8s": d, "dns": silent}})
		start(t, r)
		d.sets <- []Spec{{URL: "b:1"}}
		time.Sleep(firstSetTimeout - time.Millisecond)
		if s.workers() != "none yet" {
			t.Errorf("sink has %q before every source answered", s.workers())
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if s.workers() != "a:1 b:1" {
			t.Errorf("sink has %q after the first pass", s.workers())
		}
		silent.sets <- []Spec{{URL: "c:1"}}
		synctest.Wait()
		if s.workers() != "a:1 b:1 c:1" {
			t.Errorf("sink has %q after the late source", s.workers())
		}
	})
}

func TestDiscover_SourceThatEndsKeepsItsSetAndIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		runs := 0
		r, s := quiet(t, Options{Discoverers: map[string]Discoverer{"k8s": discoverFunc(func(ctx context.Context, update func([]Spec)) error {
			mu.Lock()
			runs++
			n := runs
			mu.Unlock()
			if n == 2 {
				return errors.New("no answer")
			}
			update([]Spec{{URL: fmt.Sprintf("w%d:1", n)}})
			if n == 1 {
				return errors.New("cut off")
			}
			<-ctx.Done()
			return nil
		})}})
		start(t, r)
		for _, want := range []string{"w1:1", "w1:1", "w3:1"} {
			synctest.Wait()
			if s.workers() != want {
				t.Errorf("sink has %q, want %q", s.workers(), want)
			}
			time.Sleep(rediscover)
		}
	})
}

type discoverFunc func(context.Context, func([]Spec)) error

func (f discoverFunc) Discover(ctx context.Context, update func([]Spec)) error { return f(ctx, update) }

// discovers is a source that knows one set.
func discovers(specs []Spec) Discoverer {
	return discoverFunc(func(ctx context.Context, update func([]Spec)) error {
		update(specs)
		<-ctx.Done()
		return nil
	})
}

// fakeDiscoverer is a source that says what it is told to.
type fakeDiscoverer struct{ sets chan []Spec }

func newDiscoverer() *fakeDiscoverer { return &fakeDiscoverer{sets: make(chan []Spec)} }

func (d *fakeDiscoverer) Discover(ctx context.Context, update func([]Spec)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case specs := <-d.sets:
			update(specs)
		}
	}
}
