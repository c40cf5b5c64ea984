package engine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/reporter"
	"github.com/loadmonitor/loadmonitor/reporter/pub"
)

// Action is a disturbance of an engine, or its end.
type Action string

const (
	Hang    Action = "hang"    // the scheduler stops: samples grow old, HTTP and reports go on
	Crash   Action = "crash"   // the process dies: connections are reset, state is lost
	Restart Action = "restart" // a new process, after a crash where one is still running
	Silence Action = "silence" // one rank's sample no longer renews
	Hot     Action = "hot"     // most requests go to one rank
	Resume  Action = "resume"  // ends hang, silence and hot; with a rank: what concerns that rank
)

var actions = []Action{Hang, Crash, Restart, Silence, Hot, Resume}

// Command disturbs one worker.
type Command struct {
	Action Action
	Worker string // number or URL
	Rank   *int   // wanted by Silence and Hot, allowed for Resume
}

// Why a command is refused. The offender and the remedy follow in the text.
var (
	ErrCommand  = errors.New("command is not valid")
	ErrNotFound = errors.New("no such worker or rank")
	ErrConflict = errors.New("not possible in this condition")
)

// Do carries a command out and returns when it has taken effect. It may be called from any goroutine while Run runs, after
// Ready.
func (f *Fleet) Do(ctx context.Context, c Command) error {
	if err := c.check(); err != nil {
		return err
	}
	e, err := f.find(c.Worker)
	if err != nil {
		return err
	}
	if c.Rank != nil && (*c.Rank < 0 || *c.Rank >= f.opts.Ranks) {
		return fmt.Errorf("%w: rank %d of worker %d: it has ranks 0 to %d", ErrNotFound, *c.Rank, e.index, f.opts.Ranks-1)
	}
	if c.Action != Crash && c.Action != Restart {
		return e.disturb(c)
	}
	o := order{c.Action, make(chan error, 1)}
	select {
	case e.orders <- o:
	case <-ctx.Done():
		return fmt.Errorf("%s worker %d: %w", c.Action, e.index, ctx.Err())
	}
	select {
	case err := <-o.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s worker %d: %w", c.Action, e.index, ctx.Err())
	}
}

func (c Command) check() error {
	needsRank := false
	switch c.Action {
	case Silence, Hot:
		needsRank = true
	case Hang, Crash, Restart, Resume:
	default:
		return fmt.Errorf("%w: action %q: want one of %s", ErrCommand, c.Action, actionList())
	}
	if c.Worker == "" {
		return fmt.Errorf("%w: worker is missing: add worker=<number or URL>", ErrCommand)
	}
	if needsRank && c.Rank == nil {
		return fmt.Errorf("%w: rank is missing: %s wants rank=<number>", ErrCommand, c.Action)
	}
	if c.Rank != nil && !needsRank && c.Action != Resume {
		return fmt.Errorf("%w: rank %d: %s concerns a whole worker: leave rank out", ErrCommand, *c.Rank, c.Action)
	}
	return nil
}

func actionList() string {
	words := make([]string, len(actions))
	for i, a := range actions {
		words[i] = string(a)
	}
	return strings.Join(words, ", ")
}

// find returns the engine that a number or an address in any spelling means.
func (f *Fleet) find(worker string) (*engine, error) {
	if n, err := strconv.Atoi(worker); err == nil {
		if n < 0 || n >= len(f.engines) {
			return nil, fmt.Errorf("%w: worker %d: the fleet has workers 0 to %d", ErrNotFound, n, len(f.engines)-1)
		}
		return f.engines[n], nil
	}
	url, _, err := load.ParseAddress(worker)
	if err != nil {
		return nil, fmt.Errorf("%w: worker %q is neither a number nor a URL", ErrCommand, worker)
	}
	for _, e := range f.engines {
		if e.url == url {
			return e, nil
		}
	}
	return nil, fmt.Errorf("%w: worker %q: no engine of the fleet has this address: see GET /control", ErrNotFound, worker)
}

// disturb changes what the model and the collection do.
func (e *engine) disturb(c Command) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.crashed {
		return fmt.Errorf("%w: %s worker %d, which has crashed: restart it first", ErrConflict, c.Action, e.index)
	}
	switch c.Action {
	case Hang:
		e.hung = true
	case Silence:
		e.silent[*c.Rank] = true
	case Hot:
		e.hot = *c.Rank
	case Resume:
		if c.Rank == nil {
			e.hung = false
			e.hot = -1
			clear(e.silent)
			break
		}
		e.silent[*c.Rank] = false
		if e.hot == *c.Rank {
			e.hot = -1
		}
	}
	return nil
}

// WorkerState is what the control API tells of a worker.
type WorkerState struct {
	Worker         int             `json:"worker"`
	URL            string          `json:"url"`
	Role           string          `json:"role"`
	Condition      Condition       `json:"condition"`
	Lives          int             `json:"lives"`              // process lives so far
	SourceInstance string          `json:"source_instance_id"` // empty while crashed, and of an engine that publishes
	Reports        string          `json:"reports"`            // "push", or the form of payload that is published
	SilentRanks    []int           `json:"silent_ranks"`
	HotRank        *int            `json:"hot_rank"`
	SampleAgeMs    *int64          `json:"sample_age_ms"` // of the newest collection
	FailedPublish  uint64          `json:"failed_publications"`
	Reporter       *reporter.Stats `json:"reporter"`  // null while crashed, and of an engine that publishes
	Publisher      *pub.Stats      `json:"publisher"` // null while crashed, and of an engine that pushes
}

// State tells how every worker is, in order. It may be called from any goroutine once Ready is closed.
func (f *Fleet) State() []WorkerState {
	states := make([]WorkerState, len(f.engines))
	now := time.Now()
	for i, e := range f.engines {
		states[i] = e.stateAt(now)
	}
	return states
}

func (e *engine) stateAt(now time.Time) WorkerState {
	s := WorkerState{Worker: e.index, URL: e.url, Role: e.role.String(), Reports: e.voice.String(), SilentRanks: []int{}}
	e.mu.Lock()
	s.Condition = e.conditionLocked(now)
	s.Lives = e.life
	for i, silent := range e.silent {
		if silent {
			s.SilentRanks = append(s.SilentRanks, i)
		}
	}
	if !e.crashed && e.hot >= 0 {
		hot := e.hot
		s.HotRank = &hot
	}
	if e.previous != nil {
		age := now.Sub(e.previous.taken).Milliseconds()
		s.SampleAgeMs = &age
	}
	for _, o := range e.outlets {
		s.FailedPublish += o.failed.Load()
	}
	rep, sockets := e.reporter, e.sockets
	e.mu.Unlock()
	if sockets != nil {
		stats := sockets.Stats()
		s.Publisher = &stats
	}
	if rep != nil {
		stats := rep.Stats()
		s.Reporter = &stats
		s.SourceInstance = rep.SourceInstance()
	}
	return s
}
