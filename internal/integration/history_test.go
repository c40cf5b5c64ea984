package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/loadmonitor/loadmonitor/client"
	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

const (
	places    = 6                      // where workers may be registered
	steps     = 32                     // of one history
	slack     = 6 * time.Millisecond   // until a change is published: the publish interval and a tick
	markSlack = 106 * time.Millisecond // until a refresh mark is: the refresh interval as well
)

// history is one random run of a fleet, a monitor and its watchers, all inside one bubble.
type history struct {
	t    *testing.T
	seed uint64
	r    *rand.Rand

	network  *network
	sends    *gates
	monitor  *monitor
	engines  [places]*engine
	ready    bool // SetWorkers was called in this life of the monitor
	racing   bool // reports and SetWorkers happen at once
	watchers []*watcher
	reader   *grpc.ClientConn
	start    time.Time
	failed   atomic.Bool

	mu       sync.Mutex
	log      []string            // guarded by mu; what happened, for whoever must find out why
	monitors map[string]*monitor // guarded by mu; every life of the monitor, by epoch
	tally    tally               // guarded by mu where several engines act at once
}

// runHistory plays the history of a seed inside a bubble and returns what it did.
func runHistory(t *testing.T, seed uint64) (did tally) {
	synctest.Test(t, func(t *testing.T) {
		h := &history{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 0)), network: newNetwork(), sends: newGates(), start: time.Now(),
			monitors: make(map[string]*monitor)}
		h.play()
		did = h.tally
	})
	return did
}

func (h *history) play() {
	h.startMonitor()
	reader, err := dial(h.network, "reader")
	if err != nil {
		h.t.Fatal(err)
	}
	h.reader = reader
	defer func() {
		for _, w := range h.watchers {
			w.stop()
			h.tally.watched(w)
		}
		_ = h.reader.Close()
		h.monitor.stop()
		h.network.close()
	}()
	for i := range h.engines {
		h.engines[i] = &engine{values: map[int32]load.RankLoad{}, sockets: map[int32]*socket{}}
		h.engines[i].spec = h.spec(i)
	}
	for i := range 3 + h.r.IntN(3) {
		h.watchers = append(h.watchers, h.newWatcher(i))
	}
	h.tally.histories = 1
	for range h.r.IntN(5) {
		h.setWorkers()
	}
	for range steps {
		if h.failed.Load() {
			return
		}
		h.step()
	}
	h.settleDown()
}

func (h *history) startMonitor() {
	o := monitorOptions{heartbeat: time.Second, window: 3 * time.Second, sends: h.sends}
	switch h.r.IntN(3) {
	case 0:
		o.maxFrameBytes = 300 + h.r.IntN(2000) // updates and pages are split
	case 1:
		o.heartbeat = 300 * time.Millisecond
	}
	m, err := startMonitor(h.network, o)
	if err != nil {
		h.t.Fatal(err)
	}
	h.monitor, h.ready = m, false
	h.mu.Lock()
	defer h.mu.Unlock()
	h.monitors[m.Current().Snapshot.Epoch] = m
}

// life returns the monitor of an epoch.
func (h *history) life(epoch string) *monitor {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.monitors[epoch]
}

// restart ends the monitor and starts the next life of it: a new epoch that knows nobody.
func (h *history) restart() {
	h.notef("the monitor restarts")
	h.tally.restarts++
	h.monitor.stop()
	time.Sleep(h.upTo(2 * time.Second))
	h.startMonitor()
	for _, w := range h.watchers {
		w.touch(w.heldUp)
	}
	for _, e := range h.engines {
		e.registered, e.stream, e.older = false, nil, nil
		clear(e.sockets)
		e.forget()
	}
}

// step is one random event, or several at once.
func (h *history) step() {
	h.tally.events++
	switch p := h.r.IntN(100); {
	case p < 30:
		time.Sleep(h.pause())
		if h.r.IntN(3) == 0 {
			h.checkpoint()
		}
	case p < 62:
		h.report(h.engines[h.r.IntN(places)])
	case p < 70:
		h.burst()
	case p < 80:
		h.setWorkers()
	case p < 83:
		h.setNote()
	case p < 93:
		h.disturb(h.watchers[h.r.IntN(len(h.watchers))])
	case p < 94:
		switch h.r.IntN(12) {
		case 0, 1:
			h.restart()
		case 2:
			h.churn()
		}
	default:
		h.checkpoint()
	}
}

// pause is how long nothing happens: mostly less than the publish interval, sometimes longer than a window.
func (h *history) pause() time.Duration {
	switch h.r.IntN(10) {
	case 0, 1, 2, 3:
		return h.upTo(5 * time.Millisecond)
	case 4, 5, 6:
		return h.upTo(200 * time.Millisecond)
	case 7, 8:
		return h.upTo(1200 * time.Millisecond)
	}
	return h.upTo(6 * time.Second)
}

// upTo returns a random duration in whole microseconds, as the monitor counts.
func (h *history) upTo(d time.Duration) time.Duration {
	return time.Duration(h.r.Int64N(d.Microseconds())) * time.Microsecond
}

// notef remembers what happened.
func (h *history) notef(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = append(h.log, fmt.Sprintf("%12v  ", time.Since(h.start))+fmt.Sprintf(format, args...))
}

// failf fails the test once for a history, with all that happened before.
func (h *history) failf(format string, args ...any) {
	if h.failed.Swap(true) {
		return
	}
	h.t.Errorf("history %d, after %v: %s\n\nplay it again: go test ./internal/integration -run Histories -seed %d -repeat 100\n\n%s",
		h.seed, time.Since(h.start), fmt.Sprintf(format, args...), h.seed, strings.Join(h.log, "\n"))
}

// checkpoint lets everything due now happen, and compares.
func (h *history) checkpoint() {
	time.Sleep(slack)
	synctest.Wait()
	h.notef("checkpoint")
	h.tally.checkpoints++
	all, ok := h.snapshot(nil)
	if !ok {
		return
	}
	h.checkRules(all)
	p := pictureOf(all)
	for _, w := range h.watchers {
		h.check(w, p)
	}
}

// snapshot reads the newest snapshot over gRPC.
func (h *history) snapshot(f *loadmonitorpb.Filter) (*loadmonitorpb.GetSnapshotResponse, bool) {
	s, err := getSnapshot(context.Background(), loadmonitorpb.NewSnapshotServiceClient(h.reader), f)
	if err != nil {
		h.failf("GetSnapshot: %v", err)
		return nil, false
	}
	return s, true
}

// check compares a watcher's view with GetSnapshot at the view's version.
func (h *history) check(w *watcher, all *picture) {
	if err := w.trouble(); err != nil {
		h.failf("%s: %v", w.name, err)
		return
	}
	v := w.client.View()
	part := all.filtered(w.options.Filter)
	h.checkPrompt(w, v, part)
	if v.Epoch != all.epoch || v.Version != all.version {
		return // its own goroutine compares it with the archive
	}
	newest, ok := h.snapshot(w.filter())
	if !ok {
		return
	}
	if d := part.differs(newest); d != "" {
		h.failf("GetSnapshot with the filter of %s is not the filtered GetSnapshot:\n%s", w.name, d)
		return
	}
	h.tally.exact++
	if d := compare(v, part, w.truth(h.monitor)); d != "" {
		h.failf("%s, version %d:\n%s", w.name, v.Version, d)
	}
}

// checkPrompt fails when a watcher that is held up by nothing does not show all that is due. It may lag behind by versions
// that hold nothing for its view.
func (h *history) checkPrompt(w *watcher, v *client.View, newest *picture) {
	content := *newest
	content.version = v.Version
	d := "it has no picture"
	if v.Epoch != "" {
		d = compare(v, &content, w.truth(h.monitor))
	}
	if d != "" && w.prompt && w.options.MinInterval == 0 {
		h.failf("%s shows version %d and misses what changed until version %d:\n%s", w.name, v.Version, newest.version, d)
	}
	w.prompt = d == "" && v.Link.Up && !w.heldUp && v.Link.Heard.After(w.touched)
}

// checkRules compares the newest snapshot with what the rules say about what the engines sent.
func (h *history) checkRules(all *loadmonitorpb.GetSnapshotResponse) {
	var d diffs
	now := time.Now()
	listed := map[string]*loadmonitorpb.Worker{}
	for _, w := range all.GetWorkers() {
		listed[w.GetId()] = w
	}
	registered := 0
	for _, e := range h.engines {
		if !e.registered {
			continue
		}
		registered++
		w := listed[e.spec.ID]
		if w == nil {
			d.addf("worker %s is registered and not listed", e.spec.ID)
			continue
		}
		window := h.monitor.options.window
		if e.spec.Transport == load.TransportZMQ {
			window = 5 * time.Second
		}
		e.check(&d, w, now, h.monitor.zero, window, slack, markSlack)
	}
	d.equal("number of workers by the rules", len(listed), registered)
	state := loadmonitorpb.FleetState_FLEET_STATE_WARMING_UP
	switch {
	case registered > 0:
		state = loadmonitorpb.FleetState_FLEET_STATE_READY
	case h.ready:
		state = loadmonitorpb.FleetState_FLEET_STATE_NO_WORKERS
	}
	d.equal("state by the rules", all.GetSummary().GetState(), state)
	if len(d) > 0 {
		h.failf("version %d:\n%s\nsnapshot %v", all.GetVersion(), d.String(), all)
	}
}

// settleDown lets every watcher go on and waits until all show the newest version: none misses the final state.
func (h *history) settleDown() {
	h.notef("every watcher goes on")
	for _, w := range h.watchers {
		h.goOn(w)
	}
	caughtUp := func() bool {
		newest := h.monitor.Current().Snapshot
		return !slices.ContainsFunc(h.watchers, func(w *watcher) bool {
			v := w.client.View()
			return !v.Link.Up || v.Epoch != newest.Epoch || v.Version != newest.Version
		})
	}
	for range 120 {
		if h.failed.Load() {
			return
		}
		if synctest.Wait(); caughtUp() {
			h.checkpoint()
			if err := h.monitor.archive.unchanged(); err != nil {
				h.failf("%v", err)
			}
			for _, w := range h.watchers {
				if err := w.unchanged(); err != nil {
					h.failf("%s: %v", w.name, err)
				}
			}
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
	for _, w := range h.watchers {
		v := w.client.View()
		h.notef("watcher %s shows version %d, link %+v", w.name, v.Version, v.Link)
	}
	h.failf("after a minute without events a watcher does not show the newest version %d", h.monitor.Current().Snapshot.Version)
}
