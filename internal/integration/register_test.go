package integration

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

func (h *history) setWorkers() { h.monitor.SetWorkers(pointers(h.nextWorkers())) }

// nextWorkers changes who is registered and how, one or more workers at a time, and returns the whole set.
func (h *history) nextWorkers() []load.Worker {
	next := map[int]load.Worker{}
	for i, e := range h.engines {
		if e.registered {
			next[i] = e.spec
		}
	}
	for range 1 + h.r.IntN(3) {
		i := h.r.IntN(places)
		if _, ok := next[i]; ok && h.r.IntN(4) == 0 {
			delete(next, i)
		} else {
			next[i] = h.spec(i)
		}
	}
	origins := map[string]int{}
	for _, spec := range next {
		origins[spec.Origin]++
	}
	var set []load.Worker
	for i, e := range h.engines {
		spec, ok := next[i]
		if !ok {
			e.registered, e.stream = false, nil
			clear(e.sockets)
			e.forget()
			continue
		}
		spec.Conflict = ""
		if origins[spec.Origin] > 1 {
			spec.Conflict = "more than one worker has the origin " + spec.Origin
		}
		e.register(spec)
		set = append(set, spec)
	}
	h.ready = true
	h.r.Shuffle(len(set), func(i, j int) { set[i], set[j] = set[j], set[i] })
	h.notef("SetWorkers %+v", set)
	return set
}

// churn lets a watcher miss the removal of a worker, and so many removals after it that the monitor forgets it.
func (h *history) churn() {
	w := h.watchers[h.r.IntN(len(h.watchers))]
	h.notef("%s misses many workers that come and go", w.name)
	h.tally.churns++
	if h.r.IntN(2) == 0 {
		h.gate(w)
	} else {
		h.freeze(w)
		h.cut(w)
	}
	time.Sleep(slack)
	h.setWorkers()
	const extra = 300
	set := make([]load.Worker, 0, extra+places)
	for i := range extra {
		origin := fmt.Sprintf("10.9.1.%d:30000", i)
		set = append(set, load.Worker{ID: "x" + origin, URL: "http://" + origin, Origin: origin, Role: load.RoleRegular, Transport: load.TransportPush})
	}
	for _, e := range h.engines {
		if e.registered {
			set = append(set, e.spec)
		}
	}
	for range 4 {
		h.monitor.SetWorkers(pointers(set))
		time.Sleep(slack)
		h.monitor.SetWorkers(pointers(set[extra:]))
		time.Sleep(slack)
	}
}

// register makes the spec the worker of a place, and forgets what the monitor must forget with it.
func (e *engine) register(spec load.Worker) {
	old := e.spec
	same := e.registered && old.URL == spec.URL && old.Role == spec.Role && old.Transport == spec.Transport &&
		old.Conflict == spec.Conflict && (len(old.Models) == 0 || len(spec.Models) == 0 || slices.Equal(old.Models, spec.Models))
	e.spec, e.registered = spec, true
	if !same {
		e.forget()
		e.stream, e.values = nil, map[int32]load.RankLoad{}
		clear(e.sockets)
		return
	}
	if spec.Transport == load.TransportZMQ { // the ranks are those that are expected
		e.truth.ranks = maps.Clone(e.truth.ranks)
		maps.DeleteFunc(e.truth.ranks, func(n int32, _ rankTruth) bool { return int(n) >= spec.ExpectedRanks })
	}
}

// sharedOrigin is where several workers may be registered, which is a conflict (rule ID3).
const sharedOrigin = "10.9.0.99:30000"

// spec is a random worker for a place: usually much like the one that was there.
func (h *history) spec(i int) load.Worker {
	spec := h.engines[i].spec
	if spec.ID == "" || h.r.IntN(6) == 0 {
		spec = load.Worker{ID: fmt.Sprintf("w%d", i), Role: load.RoleRegular, Transport: load.TransportPush}
		switch h.r.IntN(9) {
		case 0, 1, 2:
			spec.Transport, spec.ExpectedRanks = load.TransportZMQ, 1+h.r.IntN(3)
		case 3:
			spec.Transport = load.TransportUnspecified // not chosen yet
		}
		spec.Origin = fmt.Sprintf("10.9.0.%d:30000", i)
		if h.r.IntN(6) == 0 {
			spec.Origin = sharedOrigin
		}
		spec.URL = "http://" + spec.Origin
	}
	switch h.r.IntN(6) {
	case 0:
		spec.Role = load.Role(1 + h.r.IntN(3))
	case 1:
		spec.Zone = []string{"", "z1", "z2"}[h.r.IntN(3)]
	case 2:
		spec.Models = [][]string{nil, {"m1"}, {"m2"}, {"m1", "m2"}}[h.r.IntN(4)]
	case 3:
		spec.ExpectedRanks = h.r.IntN(4)
		if spec.Transport == load.TransportZMQ {
			spec.ExpectedRanks++
		}
	case 4:
		spec.TransportReason = []string{"as configured", "the engine advertises it"}[h.r.IntN(2)]
	case 5:
		if spec.Transport == load.TransportUnspecified {
			spec.Transport = load.TransportPush
		}
	}
	return spec
}

// setNote lets registration or a bridge tell of trouble.
func (h *history) setNote() {
	id := fmt.Sprintf("w%d", h.r.IntN(places))
	note := []string{"", "registration failed: HTTP 503", "connection refused"}[h.r.IntN(3)]
	h.notef("note of %s: %q", id, note)
	if h.r.IntN(3) == 0 {
		h.monitor.SetRankNote(id, int32(h.r.IntN(3)), note)
	} else {
		h.monitor.SetNote(id, note)
	}
}
