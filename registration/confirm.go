package registration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/loadmonitor/loadmonitor/load"
)

// Confirm asks the engine of a worker that is fed over ZMQ who it is: nil says that the load sockets handed to the Dialer
// are those of the registered worker's engine still. It asks anew, on a new connection, and is for whoever connected to a
// socket and must not take another engine's data for the worker's (case L4). Otherwise the error says in what the engine
// differs, or why it does not answer.
func (r *Registry) Confirm(ctx context.Context, workerID string) error {
	e := r.entryOf(workerID)
	if e == nil {
		return fmt.Errorf("worker %q: %w", workerID, load.ErrUnknownWorker)
	}
	was := e.choice // as handed to the Dialer, or soon to be
	if was.worker.Transport != load.TransportZMQ {
		return errors.New("the worker is not fed over ZMQ any more")
	}
	if was.note != "" {
		return errors.New(was.note)
	}
	in, err := e.probe.ask(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("the engine did not answer /server_info in time")
	case err != nil:
		return err
	case in.outcome != granted:
		return fmt.Errorf("/server_info: %s", in.reason)
	}
	is := choose(e.target, known{facts: in.facts, told: true, generation: e.known.Value().generation}, &r.opts)
	return differs(was, is)
}

// differs says in what the engine that answers is not the one that was chosen for. Where models are configured, is.note
// compares them; otherwise a worker has the engine's own.
func differs(was, is *choice) error {
	at := was.worker.Origin
	switch {
	case is.note != "":
		return fmt.Errorf("another engine answers at %s: %s", at, is.note)
	case !slices.Equal(was.worker.Models, is.worker.Models):
		return fmt.Errorf("another engine answers at %s: it serves model %q, not %q", at, models(is), models(was))
	case was.worker.Role != is.worker.Role:
		return fmt.Errorf("another engine answers at %s: it is %s, not %s", at, is.worker.Role, was.worker.Role)
	case is.worker.Transport != load.TransportZMQ:
		return fmt.Errorf("the engine at %s publishes no load now: %s", at, is.worker.TransportReason)
	case !slices.Equal(was.dialled().ranks, is.dialled().ranks):
		return fmt.Errorf("the engine at %s advertises other load sockets now: %s", at, is.worker.TransportReason)
	}
	return nil
}

func models(c *choice) string { return clipped(strings.Join(c.worker.Models, ", ")) }
