package registration

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// Case K5: the control path fails for two leases, the report streams go on. No worker is dropped, and what comes after is
// spread.
func TestLease_OutageOfTheControlPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := newPipes(), newSink()
		e := &fakeEngine{}
		var specs []Spec
		for i := range 30 {
			addr := fmt.Sprintf("w%d:1", i)
			t.Cleanup(n.serve(addr, e))
			specs = append(specs, pushers(addr)...)
		}
		r := mustNew(t, Options{Sink: s, Static: specs})
		n.use(r)
		start(t, r)
		time.Sleep(time.Minute)
		e.answerWith(statusOnly(503))
		time.Sleep(30 * time.Second)
		if len(s.sets) != 1 || len(r.Registrations()) != 30 {
			t.Errorf("%d sets and %d workers, want the one set of 30", len(s.sets), len(r.Registrations()))
		}
		if lost := figure(t, r, "leases_lost_total", ""); lost != 30 {
			t.Errorf("%v leases lost, want all 30 by the rule that they are not renewed", lost)
		}
		e.answerWith(nil)
		recovered := time.Now()
		time.Sleep(6 * time.Second)
		perSecond := map[int]int{}
		first := map[string]bool{}
		for _, p := range e.seen() {
			if p.at.After(recovered) && !first[p.host] {
				first[p.host] = true
				perSecond[int(p.at.Sub(recovered)/time.Second)]++
			}
		}
		if len(first) != 30 || figure(t, r, "registered_workers", "state=leased") != 30 {
			t.Errorf("%d workers were asked and %v are leased, want 30", len(first), figure(t, r, "registered_workers", "state=leased"))
		}
		for sec, c := range perSecond {
			if c > 22 {
				t.Errorf("%d of 30 came back in second %d: %v", c, sec, perSecond)
			}
		}
	})
}

// Case K8: dead workers fall back to the ceiling, cost one log line each, and disturb nobody.
func TestLease_DeadWorkersFallBackAndStayQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPipes()
		var specs []Spec
		live := make([]*fakeEngine, 8)
		for i := range live {
			live[i] = saying(`{}`)
			addr := fmt.Sprintf("live%d:1", i)
			t.Cleanup(n.serve(addr, live[i]))
			specs = append(specs, pushers(addr)...)
		}
		for i := range 60 {
			addr := fmt.Sprintf("dead%d:1", i)
			n.blackhole[addr] = i%2 == 0
			specs = append(specs, pushers(addr)...)
		}
		var log bytes.Buffer
		r := mustNew(t, Options{Static: specs, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		n.use(r)
		stop := start(t, r)
		time.Sleep(time.Minute)
		n.mu.Lock()
		before := n.dials["dead1:1"]
		n.mu.Unlock()
		time.Sleep(3 * time.Minute)
		n.mu.Lock()
		after := n.dials["dead1:1"]
		n.mu.Unlock()
		// The pause is 2.5 s to 5.5 s, and 9 to 11 s for /server_info.
		if tries := after - before; tries < 180/6+180/11-1 || tries > 180*2/5+180/9 {
			t.Errorf("%d tries in 3 minutes, want one per 2.5 to 5.5 s", tries)
		}
		for i, e := range live {
			posts := e.seen()
			for j := 1; j < len(posts); j++ {
				if gap := posts[j].at.Sub(posts[j-1].at); gap >= 5*time.Second {
					t.Errorf("live worker %d was renewed after %v", i, gap)
				}
			}
		}
		e := &fakeEngine{}
		t.Cleanup(n.serve("dead1:1", e))
		time.Sleep(5500 * time.Millisecond)
		if len(e.seen()) == 0 {
			t.Error("a dead worker that came back was not asked within one ceiling")
		}
		stop()
		if lines := strings.Count(log.String(), "worker=dead7:1"); lines != 1 {
			t.Errorf("%d log lines for a dead worker, want 1", lines)
		}
		if strings.Contains(log.String(), "worker=live0:1") {
			t.Error("a live worker was logged")
		}
	})
}

// Cases K1 and K8: engines that hang fill every slot for another try, and neither renewals nor new workers wait for them.
func TestLease_HungEnginesFillOnlyTheirOwnSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, e, late := newPipes(), &fakeEngine{}, &fakeEngine{}
		t.Cleanup(n.serve("w:1", e))
		t.Cleanup(n.serve("late:1", late))
		specs := pushers("w:1")
		r := mustNew(t, Options{Static: specs, MaxPosts: 2})
		n.use(r)
		start(t, r)
		synctest.Wait()
		for i := range 50 {
			addr := fmt.Sprintf("hung%d:1", i)
			n.mu.Lock()
			n.blackhole[addr] = true
			n.mu.Unlock()
			specs = append(specs, pushers(addr)...)
		}
		if err := r.SetStatic(specs); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		if _, err := r.Register(load.Worker{URL: "late:1", Role: load.RoleRegular, Transport: load.TransportPush}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(late.seen()) != 1 {
			t.Error("a new worker waits for engines that hang")
		}
		posts := e.seen()
		for i := 1; i < len(posts); i++ {
			if gap := posts[i].at.Sub(posts[i-1].at); gap >= 5*time.Second {
				t.Errorf("renewed after %v beside engines that hang", gap)
			}
		}
	})
}
