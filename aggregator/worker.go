package aggregator

import (
	"time"

	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/validator"
)

// worker is the mutable state of one registered worker, guarded by Aggregator.mu.
type worker struct {
	spec      *load.Worker // replaced, never changed: entries share it
	handle    uint32
	window    time.Duration // how long a report keeps a rank fresh
	removed   bool
	described bool   // id, role, models or zone changed since the last publication
	note      string // registration's trouble with the engine

	// Who feeds it.
	stream   *load.Stream              // the push or dial-in stream; nil between streams
	sockets  map[*load.Stream]struct{} // or the streams of single ranks
	source   string
	retired  []string // replaced source instances, newest last
	restarts uint32

	// The newest accepted report.
	sequence    uint64
	reportTime  int64
	lastError   string
	unreachable bool
	turnedAway  string // why the newest stream that was turned away may not feed it; "" once a report is accepted
	refused     string // why the newest report was refused; "" once one is accepted
	conflict    bool   // another publisher tries to feed the same (rules ID4 and SEQ2)

	// Ranks of the newest report that had some, sorted; state[i] belongs to ranks[i], and so does dialled[i] where each
	// rank has a socket of its own. The slice ranks is shared with snapshots once published, so that a report with new
	// values writes into a new one.
	ranks   []load.Rank
	shared  bool
	state   []rankState
	dialled []dialledRank

	// As built last.
	freshness        load.Freshness
	describedVersion uint64

	// What is to be published, and when time changes it.
	isDirty  bool // stands in Aggregator.dirty
	isMarked bool // stands in Aggregator.refreshed
	isQueued bool // stands in Aggregator.deadlines

	// Used only by Run.
	entry   *load.Entry    // as published last; nil: never
	counted load.Freshness // of entry: the summary counts it. The entry itself is far away by then
	index   int            // position in the table
	gone    bool           // published as removed
}

// rankState is what of a rank is not published as it is: half a cache line, without pointers.
type rankState struct {
	validator.RankState
	expired bool // passed its deadline since its newest report

	prefillSeen    bool    // see validator.Normalise
	prefillCounted bool    // the load that is kept of the rank holds both prefill counters, of the source that reports now
	prefillKnown   bool    // prefillRate is
	prefillRate    float64 // tokens a second; 0 when it is not known
}

// dialledRank is what else there is of a rank with a socket of its own.
type dialledRank struct {
	socket   validator.Socket // rule SEQ2
	conflict bool             // as published of socket
	note     string           // why the socket has no data
}

// deadline returns when the next rank passes its deadline, 0 when all have.
func (w *worker) deadline(now load.Instant) load.Instant {
	var first load.Instant
	for i := range w.state {
		if w.state[i].Received == 0 {
			continue
		}
		if d := w.state[i].Deadline(w.window); d > now && (first == 0 || d < first) {
			first = d
		}
	}
	return first
}

// markDirtyLocked puts the worker's content on the list of the next publication.
func (a *Aggregator) markDirtyLocked(w *worker) {
	if w.isDirty || w.removed {
		return
	}
	w.isDirty = true
	a.dirty = append(a.dirty, w)
	if len(a.dirty) == 1 && !a.looks {
		a.wakeUp()
	}
}

// markRefreshedLocked puts the worker on the list of the next batch of marks.
func (a *Aggregator) markRefreshedLocked(w *worker) {
	if w.isDirty || w.isMarked {
		return
	}
	w.isMarked = true
	a.refreshed = append(a.refreshed, w)
	if len(a.refreshed) == 1 {
		a.wakeUp()
	}
}
