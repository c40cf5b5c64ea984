package registration

import (
	"fmt"

	"github.com/loadmonitor/loadmonitor/load"
)

// SetStatic replaces the configured set. When it is not valid, the set before stays and the error says what is wrong. It
// returns after the sink has taken the change.
func (r *Registry) SetStatic(specs []Spec) error {
	static, err := checkStatic(specs, r.opts.MaxRanks, r.opts.MaxWorkers)
	if err != nil {
		return err
	}
	set := newSourceSet(static)
	r.mu.Lock()
	r.static = set
	p := r.next
	r.mu.Unlock()
	return r.settle(p)
}

// Register adds a worker until Deregister or the end of Run, or replaces the one of the same id that Register added. It
// returns the worker as registered, after the sink has taken it. Errors: load.ErrWorkerSpec, load.ErrConfigured,
// load.ErrTooManyWorkers, load.ErrShuttingDown; a refused request changes nothing and leaves nothing behind.
func (r *Registry) Register(w load.Worker) (load.Worker, error) {
	spec := Spec{ID: w.ID, URL: w.URL, Role: w.Role, Models: w.Models, Zone: w.Zone, ExpectedRanks: w.ExpectedRanks, Transport: w.Transport}
	t, err := spec.normalise(r.opts.MaxRanks)
	if err != nil {
		return load.Worker{}, err
	}
	t.source = SourceAPI

	r.mu.Lock()
	known, replaces := r.api[t.worker.ID]
	if err := r.admitLocked(t, replaces); err != nil {
		r.mu.Unlock()
		return load.Worker{}, err
	}
	if replaces && known.describes(t) {
		r.mu.Unlock()
		return r.registered(t), nil
	}
	r.api[t.worker.ID] = t
	p := r.next
	r.mu.Unlock()
	err = r.settle(p)
	return r.registered(t), err
}

// registered returns the worker that a description stands for: with its engine's word, where that is known.
func (r *Registry) registered(t *target) load.Worker {
	if e := r.entryOf(t.worker.ID); e != nil && e.target.describes(t) {
		return e.choice.worker
	}
	return choose(t, known{}, &r.opts).worker
}

// admitLocked judges a worker of the API against what other sources have.
func (r *Registry) admitLocked(t *target, replaces bool) error {
	owner, taken := r.static.claim(t)
	for _, set := range r.found {
		if taken {
			break
		}
		owner, taken = set.claim(t)
	}
	if taken {
		return fmt.Errorf("worker %q at %s: id or address is that of %q at %s (%s): %w", t.worker.ID, t.worker.Origin,
			owner.worker.ID, owner.worker.Origin, owner.source, load.ErrConfigured)
	}
	if !replaces && r.claimedLocked() >= r.opts.MaxWorkers {
		return fmt.Errorf("worker %q: %d are registered: %w", t.worker.ID, r.opts.MaxWorkers, load.ErrTooManyWorkers)
	}
	return nil
}

// Deregister removes a worker that Register added; id may also be the one that ListWorkers shows while the worker is in
// conflict. It returns after the sink has taken the change. Errors: load.ErrUnknownWorker, load.ErrConfigured,
// load.ErrShuttingDown.
func (r *Registry) Deregister(id string) error {
	r.mu.Lock()
	e := r.entryLocked(id)
	key := id
	if _, ours := r.api[key]; !ours && e != nil && e.target.source == SourceAPI {
		key = e.target.given
	}
	if _, ours := r.api[key]; !ours {
		r.mu.Unlock()
		if e != nil {
			return fmt.Errorf("worker %q (%s): %w", id, e.target.source, load.ErrConfigured)
		}
		return fmt.Errorf("worker %q: %w", clipped(id), load.ErrUnknownWorker)
	}
	delete(r.api, key)
	p := r.next
	r.mu.Unlock()
	return r.settle(p)
}

// settle waits until the pass that takes in a change has handed it to the sink. Before Run there is nothing to wait for:
// the first pass takes it in.
func (r *Registry) settle(p *pass) error {
	r.wake()
	r.mu.Lock()
	running := r.running
	r.mu.Unlock()
	if !running {
		return nil
	}
	select {
	case <-p.done:
		return nil
	case <-r.stopped:
	}
	select {
	case <-p.done:
		return nil
	default:
		return load.ErrShuttingDown
	}
}

// Registrations returns every registered worker with the state of its registration, sorted by id.
func (r *Registry) Registrations() []load.Registration {
	r.mu.Lock()
	entries := r.entries // never changed in place
	r.mu.Unlock()
	all := make([]load.Registration, len(entries))
	for i, e := range entries {
		s := e.lease.status()
		all[i] = load.Registration{
			Worker: e.choice.worker, Source: e.target.source, State: s.state, Reason: s.reason, LastHTTPStatus: s.http, ProbeError: e.probe.error(),
		}
	}
	return all
}

// Nudge makes the worker's loops renew and ask soon instead of at their time: for when its stream ended or its load went
// stale although the lease lives, because an engine that was restarted has forgotten the lease, and may be another now. It
// never blocks. Renewals stay at least a second and one and a half report intervals apart, and nudges that follow one
// another without a quiet renewal between them move less and less. Unknown ids are left alone, and so are renewals of
// workers whose last request failed: those have a retry under way.
func (r *Registry) Nudge(id string) {
	e := r.entryOf(id)
	if e == nil {
		return
	}
	e.lease.nudge()
	e.probe.nudge()
}

// Probe makes the worker's loop ask soon what its engine is: for when something makes one doubt it, as silence or a number
// of ranks that is not the expected one. It never blocks. Requests stay at least a second apart, and more the longer doubts
// follow one another, up to Options.ProbeInterval. Unknown ids are left alone.
func (r *Registry) Probe(id string) {
	if e := r.entryOf(id); e != nil {
		e.probe.nudge()
	}
}
