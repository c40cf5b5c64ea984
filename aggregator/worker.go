package aggregator

import (
	"time"

	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/validator"
)

// worker is the mutable state of one registered worker, guarded by Aggregator.mu. There are thousands: small fields stand
// side by side, so that there are no gaps.
type worker struct {
	spec   *load.Worker  // replaced, never changed: entries share it
	window time.Duration // how long a report keeps a rank fresh
	note   string        // registration's trouble with the engine

	handle    uint32
	restarts  uint32
	removed   bool
	described bool // id, role, models or zone changed since the last publication

	// As of the newest accepted report.
	unreachable bool
	conflict    bool // another publisher tries to feed the same (rules ID4 and SEQ2)
	shared      bool // see ranks

	// What is to be published, and when time changes it.
	isDirty  bool // stands in Aggregator.dirty
	isMarked bool // stands in Aggregator.refreshed
	isQueued bool // stands in Aggregator.deadlines

	freshness load.Freshness // as built last
	counted   load.Freshness // of entry, used only by Run: the summary counts it. The entry itself is far away by then
	gone      bool           // published as removed; used only by Run

	// Who feeds it.
	stream  *load.Stream // the push or dial-in stream; nil between streams
	sockets *sockets     // or those of single ranks
	source  string
	retired []string // replaced source instances, newest last

	// The newest accepted report.
	sequence   uint64
	reportTime int64
	lastError  string
	turnedAway string // why the newest stream that was turned away may not feed it; "" once a report is accepted
	refused    string // why the newest report was refused; "" once one is accepted

	// Ranks of the newest report that had some, sorted; state[i] belongs to ranks[i]. The slice ranks is shared with
	// snapshots once published, so that a report with new values writes into a new one.
	ranks []load.Rank
	state []rankState

	describedVersion uint64 // as built last

	// Used only by Run.
	entry *load.Entry // as published last; nil: never
	index int         // position in the table
}

// sockets is what else there is of a worker whose ranks have sockets of their own.
type sockets struct {
	streams map[*load.Stream]struct{} // that feed it
	ranks   []dialledRank             // ranks[i] belongs to ranks[i] of the worker
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
