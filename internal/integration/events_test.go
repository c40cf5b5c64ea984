package integration

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// burst lets several engines, and at times registration too, act at the same moment.
func (h *history) burst() {
	h.notef("at once:")
	var acts []func()
	for _, i := range h.r.Perm(places)[:2+h.r.IntN(places-1)] {
		acts = append(acts, h.prepare(h.engines[i]))
	}
	if h.r.IntN(3) == 0 {
		// Which comes first is not known, so neither is what is accepted and what stays of it.
		h.racing = true
		defer func() {
			h.racing = false
			for _, e := range h.engines { // also those whose origin another one claimed until now
				e.doubt()
			}
		}()
		set := h.nextWorkers()
		acts = append(acts, func() { h.monitor.SetWorkers(set) })
	}
	var together sync.WaitGroup
	for _, act := range acts {
		together.Go(act)
	}
	together.Wait()
}

// report lets an engine act alone.
func (h *history) report(e *engine) { h.prepare(e)() }

// prepare decides what an engine does next. The result does it; it touches no other engine.
func (h *history) prepare(e *engine) func() {
	if !e.registered && e.spec.Origin == sharedOrigin {
		return func() {} // its reports would be those of the worker that has the origin now
	}
	if e.spec.Transport == load.TransportZMQ {
		return h.prepareRank(e)
	}
	if e.stream != nil && e.stream.Err() != nil {
		h.drop(e, e.stream)
	}
	if e.source == "" || h.r.IntN(12) == 0 { // a new process
		h.replace(e)
		e.sources++
		e.source, e.seq = fmt.Sprintf("%s-%d", e.spec.ID, e.sources), 0
	}
	st := e.stream
	switch p := h.r.IntN(100); {
	case p < 6 && st != nil:
		return func() {
			h.notef("%s closes its stream", e.spec.ID)
			h.drop(e, st)
		}
	case p < 12 && len(e.older) > 0:
		return h.late(e)
	case p < 15 && st != nil:
		return h.impostor(e)
	case p < 22:
		h.replace(e) // a second stream of the same process
	}
	if e.stream == nil {
		e.stream = load.NewStream(load.TransportPush)
	}
	st = e.stream
	r, sane := e.report(h.r, time.Now())
	surely := sane && h.ready && e.registered && e.spec.Conflict == "" && !e.truth.unsure
	return func() {
		err := h.apply(e, st, r)
		switch {
		case err != nil && surely && !h.racing:
			h.failf("a sane report of %s was refused: %v", e.spec.ID, err)
		case err == nil && !sane:
			h.failf("a report of %s was accepted: %+v", e.spec.ID, r)
		}
		if err != nil && endsStream(err) {
			h.drop(e, st)
		}
	}
}

// apply does what the server does with a report.
func (h *history) apply(e *engine, st *load.Stream, r *load.Report) error {
	retired := slices.Contains(e.truth.retired, r.SourceInstance)
	err := h.monitor.Apply(st, r)
	if err == nil {
		if retired && !h.racing {
			h.failf("a report of %s from a source that was replaced was accepted: %q", e.spec.ID, r.SourceInstance)
		}
		e.took(r, time.Now())
	}
	e.tookOrNot(err)
	h.counted(err)
	h.notef("%s seq %d of %q, status %d, %d ranks: %v", e.spec.ID, r.Sequence, r.SourceInstance, r.Status, len(r.Ranks), err)
	return err
}

func (h *history) counted(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.tally.accepted++
	} else {
		h.tally.refused++
	}
}

// replace leaves the engine's stream to itself, as a half-open connection does.
func (h *history) replace(e *engine) {
	if e.stream != nil {
		e.older = append(e.older, older{e.stream, e.source})
		e.stream = nil
	}
}

// late sends a report over a stream that was replaced, or closes that.
func (h *history) late(e *engine) func() {
	o := e.older[0]
	e.older = e.older[1:]
	if h.r.IntN(2) == 0 {
		return func() {
			h.notef("%s closes an older stream", e.spec.ID)
			h.drop(e, o.stream)
		}
	}
	if h.r.IntN(2) == 0 { // or over another connection that the older process had opened
		defer h.drop(e, o.stream)
		o.stream = load.NewStream(load.TransportPush)
	}
	r, _ := e.report(h.r, time.Now())
	r.SourceInstance = o.source
	e.seq += 1000
	r.Sequence = e.seq
	return func() {
		if h.apply(e, o.stream, r) == nil && o.source != e.source {
			h.replace(e) // the monitor had not heard of the older source before, so the newer one is replaced now
			e.source = ""
		}
		h.drop(e, o.stream)
	}
}

// impostor sends a report that changes who the stream speaks for (rule ID2).
func (h *history) impostor(e *engine) func() {
	r, _ := e.report(h.r, time.Now())
	r.Claim.Role = r.Claim.Role%3 + 1
	st := e.stream
	return func() {
		if err := h.apply(e, st, r); err == nil && !h.racing {
			h.failf("a report of %s with another role was accepted", e.spec.ID)
		}
		h.drop(e, st)
	}
}

// drop ends a stream of the engine, as the server does when the call is over.
func (h *history) drop(e *engine, st *load.Stream) {
	h.monitor.Release(st)
	if e.stream == st {
		e.stream = nil
	}
}

// prepareRank sends one message of one rank's socket.
func (h *history) prepareRank(e *engine) func() {
	n := int32(h.r.IntN(e.spec.ExpectedRanks + 1)) // the last is one too many
	s := e.sockets[n]
	if s == nil || s.stream.Err() != nil {
		s = &socket{stream: load.NewStream(load.TransportZMQ)}
		e.sockets[n] = s
	}
	switch p := h.r.IntN(20); {
	case p < 1:
		s.seq = int64(h.r.IntN(2)) // the publisher restarted
	case p < 2: // the same message again
	case p < 4:
		s.seq += int64(h.r.IntN(100))
	default:
		s.seq++
	}
	l, ok := e.values[n]
	if !ok || h.r.IntN(2) == 0 {
		l = randomLoad(h.r, n)
		e.values = maps.Clone(e.values)
		e.values[n] = l
	}
	r := &load.RankReport{WorkerID: e.spec.ID, Sequence: s.seq, Load: l, CapacityOptional: h.r.IntN(2) == 0}
	return func() {
		err := h.monitor.ApplyRank(s.stream, r)
		if err == nil {
			e.tookRank(r, time.Now())
		}
		e.tookOrNot(err)
		h.counted(err)
		h.notef("%s rank %d seq %d: %v", e.spec.ID, n, r.Sequence, err)
		if err != nil && endsStream(err) {
			h.drop(e, s.stream)
			delete(e.sockets, n)
		}
	}
}

// endsStream tells the refusals after which a stream ends from those of values.
func endsStream(err error) bool {
	return !slices.ContainsFunc([]error{
		load.ErrSequenceOld, load.ErrSequenceRange, load.ErrSequenceJump, load.ErrPublisherConflict, load.ErrStatus, load.ErrNoRanks,
		load.ErrTooManyRanks, load.ErrRankRange, load.ErrDuplicateRank, load.ErrNegative, load.ErrNotFinite,
	}, func(stays error) bool { return errors.Is(err, stays) })
}

// tookOrNot notes whether the worker must show that its newest report was refused. Sequences are only counted.
func (e *engine) tookOrNot(err error) {
	ignored := errors.Is(err, load.ErrSequenceOld) || errors.Is(err, load.ErrSequenceJump) || errors.Is(err, load.ErrPublisherConflict)
	switch {
	case err == nil:
		e.refused = false
	case !endsStream(err) && !ignored && !(e.spec.Transport == load.TransportZMQ && errors.Is(err, load.ErrRankRange)):
		e.refused = true
	}
}

func (h *history) setWorkers() { h.monitor.SetWorkers(h.nextWorkers()) }

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
		h.sends.close(w.name)
	} else {
		h.network.freeze(w.name)
		h.network.cut(w.name)
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
		h.monitor.SetWorkers(set)
		time.Sleep(slack)
		h.monitor.SetWorkers(set[extra:])
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
		if h.r.IntN(3) == 0 {
			spec.Transport, spec.ExpectedRanks = load.TransportZMQ, 1+h.r.IntN(3)
		}
		spec.Origin = fmt.Sprintf("10.9.0.%d:30000", i)
		if h.r.IntN(6) == 0 {
			spec.Origin = sharedOrigin
		}
		spec.URL = "http://" + spec.Origin
	}
	switch h.r.IntN(5) {
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
