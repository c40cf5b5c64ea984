package registration

import (
	"fmt"

	"github.com/loadmonitor/loadmonitor/load"
)

// SourceConfig and SourceAPI are the names of the two built-in sources in [load.Registration].
const (
	SourceConfig = "config"
	SourceAPI    = "api"
)

// checkStatic normalises the configured workers. Unlike what other sources say, a configuration is refused whole when
// any entry is wrong or two share an id or an address: nobody should find out later that a worker was left out.
func checkStatic(specs []Spec, maxRanks, maxWorkers int) ([]*target, error) {
	if len(specs) > maxWorkers {
		return nil, fmt.Errorf("%d workers are configured, at most %d are allowed: %w", len(specs), maxWorkers, load.ErrTooManyWorkers)
	}
	var errs []error
	targets := make([]*target, 0, len(specs))
	ids := make(map[string]*target, len(specs))
	origins := make(map[string]*target, len(specs))
	for i, s := range specs {
		if s.Where == "" {
			s.Where = fmt.Sprintf("worker %d", i+1)
		}
		t, err := s.normalise(maxRanks)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name(), err))
			continue
		}
		t.source = SourceConfig
		if o, twice := origins[t.worker.Origin]; twice {
			errs = append(errs, fmt.Errorf("%w: workers %s and %s have the same address %s: remove one",
				load.ErrWorkerSpec, o.name(), t.name(), t.worker.Origin))
		} else if o, twice := ids[t.worker.ID]; twice {
			errs = append(errs, fmt.Errorf("%w: workers %s and %s have the same id: give each its own",
				load.ErrWorkerSpec, o.name(), t.name()))
		}
		ids[t.worker.ID], origins[t.worker.Origin] = t, t
		targets = append(targets, t)
	}
	if len(errs) > 0 {
		return nil, refusedErrors(errs)
	}
	return targets, nil
}

// name is how errors call an entry: its place, and its id where it has one.
func (s Spec) name() string {
	if s.ID == "" {
		return s.Where
	}
	return fmt.Sprintf("%s (id %q)", s.Where, s.ID)
}

// name is how errors call an entry: its id and its place.
func (t *target) name() string {
	if t.where == "" {
		return fmt.Sprintf("%q", t.worker.ID)
	}
	return fmt.Sprintf("%q (%s)", t.worker.ID, t.where)
}

// refusedErrors keeps load.ErrWorkerSpec in the chain of the joined text.
func refusedErrors(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return &specErrors{joined(errs)}
}

// specErrors is several refused entries in one text, each of which says already what it is.
type specErrors struct{ error }

func (specErrors) Unwrap() error { return load.ErrWorkerSpec }

// sourceSet is what one source knows, with an index of the ids and origins that it claims.
type sourceSet struct {
	targets     []*target
	ids, origin map[string]int // -> index in targets
}

func newSourceSet(targets []*target) sourceSet {
	s := sourceSet{targets: targets, ids: make(map[string]int, len(targets)), origin: make(map[string]int, len(targets))}
	for i, t := range targets {
		s.ids[t.worker.ID], s.origin[t.worker.Origin] = i, i
	}
	return s
}

// claim returns the worker of the set that has t's id or origin.
func (s sourceSet) claim(t *target) (*target, bool) {
	i, taken := s.ids[t.worker.ID]
	if !taken {
		i, taken = s.origin[t.worker.Origin]
	}
	if !taken {
		return nil, false
	}
	return s.targets[i], true
}
