package integration

import "fmt"

// tally counts what histories did, so that a test can tell that it tested something.
type tally struct {
	histories, events    int
	accepted, refused    int // reports
	restarts, churns     int // of the monitor, of the fleet
	checkpoints, exact   int // exact: views compared with GetSnapshot over gRPC
	views                int // views compared with what GetSnapshot answered at their version
	freezes, gates, cuts int // of watchers

	resumes, fullPictures, deltas, linkLosses uint64
}

func (t *tally) add(o tally) {
	t.histories += o.histories
	t.events += o.events
	t.accepted += o.accepted
	t.refused += o.refused
	t.restarts += o.restarts
	t.churns += o.churns
	t.checkpoints += o.checkpoints
	t.exact += o.exact
	t.views += o.views
	t.freezes += o.freezes
	t.gates += o.gates
	t.cuts += o.cuts
	t.resumes += o.resumes
	t.fullPictures += o.fullPictures
	t.deltas += o.deltas
	t.linkLosses += o.linkLosses
}

// watched takes in what a watcher's client counted.
func (t *tally) watched(w *watcher) {
	s := w.client.Stats()
	t.views += w.compared
	t.resumes += s.Resumes
	t.fullPictures += s.FullPictures
	t.deltas += s.Deltas
	t.linkLosses += s.LinkLosses
}

func (t *tally) String() string {
	return fmt.Sprintf("%d histories, %d events: %d reports accepted, %d refused, %d restarts of the monitor, %d churns; "+
		"%d freezes, %d gates, %d cuts, %d resumes, %d full pictures, %d deltas, %d link losses; "+
		"%d views compared, %d of them with GetSnapshot over gRPC at %d checkpoints",
		t.histories, t.events, t.accepted, t.refused, t.restarts, t.churns, t.freezes, t.gates, t.cuts, t.resumes, t.fullPictures,
		t.deltas, t.linkLosses, t.views+t.exact, t.exact, t.checkpoints)
}
