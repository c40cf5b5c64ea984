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
		acts = append(acts, func() { h.monitor.SetWorkers(pointers(set)) })
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
	surely := sane && h.ready && e.registered && e.spec.Transport == load.TransportPush && e.spec.Conflict == "" && !e.truth.unsure
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
