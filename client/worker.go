package client

import (
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// Status is what a view shows of one worker. It is shared by all views until the worker changes: read it, never write
// it. Meaning and units of each field stand in proto/loadmonitor/v1/snapshot.proto under the same names.
type Status struct {
	Handle    uint32 // stands for the worker within one epoch
	ID        string
	URL       string // scheme://host:port
	Role      load.Role
	Models    []string
	Zone      string
	Transport load.Transport // unspecified: not chosen yet
	// TransportReason says why it is that one: "zmq: the engine advertises load port 5559".
	TransportReason string

	// Freshness says whether the load may be relied on; anything but load.Fresh may not.
	Freshness load.Freshness
	// Reason says why the worker is not fresh, why a report was refused, or why nothing feeds it.
	Reason string

	SourceInstance string // the life of the reporter
	Sequence       uint64 // of the report that last changed the worker
	Restarts       uint32
	ExpectedRanks  int           // 0: not known
	Window         time.Duration // how long a report keeps a rank fresh
	Anomalies      []string      // sorted words; the set may grow
	LastError      string        // the engine's own

	// Aggregate holds the figures over the ranks. Stale ranks keep their last values: read Freshness first.
	Aggregate load.Aggregate
	// Ranks are sorted by DPRank; empty when they were not asked for.
	Ranks []Rank

	oldest load.Instant // when the oldest fresh rank was received, before marks; 0: no rank is fresh
}

// Rank is the load of one DP rank.
type Rank struct {
	// Load is what the engine told. The engine's own sample time is not passed on; see SampleAge.
	Load      load.RankLoad
	Freshness load.Freshness // load.Fresh, load.Stale or load.Missing
	Reason    string         // why it is not fresh

	sampleAge time.Duration // negative: not told
	received  load.Instant  // before marks; 0: never
}

// SampleAge returns how old the sample was when the engine reported it, by the engine's own clock, and whether that was
// told (rule VAL5).
func (r *Rank) SampleAge() (time.Duration, bool) {
	if r.sampleAge < 0 {
		return 0, false
	}
	return r.sampleAge, true
}

// Worker is one worker of a view: its status, and when that was last confirmed. It is a small value; copying it shares
// the status. The zero Worker, which look-ups return for "not found", has no status.
//
// Local times that it returns carry Go's monotonic reading and compare with time.Now. They are not later than the moment
// they stand for: arrival less age, less the bound of the link.
type Worker struct {
	*Status

	refreshed load.Instant // every fresh rank was received then or later; 0: no mark since the status changed
	clock     *clock
}

// ReceivedAt returns when the monitor received the newest report of Ranks[i]. The zero time: never.
func (w Worker) ReceivedAt(i int) time.Time { return w.clock.notAfter(w.received(i)) }

// OldestReceivedAt returns when the monitor received the report of the fresh rank that has waited longest. A request
// that the router dispatched after this time may be missing from the worker's figures; one that it dispatched before is
// in them, as far as the engine's sample was young. The zero time: no rank is fresh.
func (w Worker) OldestReceivedAt() time.Time { return w.clock.notAfter(w.oldestFresh()) }

// Age returns how long ago the monitor received the oldest of the worker's fresh ranks, or, when none is fresh, the
// oldest of those that ever reported. ok is false when nothing is known of that.
func (w Worker) Age(now time.Time) (age time.Duration, ok bool) {
	oldest := w.oldestFresh()
	if oldest == 0 {
		for i := range w.Ranks {
			if t := w.received(i); t != 0 && (oldest == 0 || t < oldest) {
				oldest = t
			}
		}
	}
	at := w.clock.notAfter(oldest)
	if at.IsZero() {
		return 0, false
	}
	return max(0, now.Sub(at)), true
}

// received resolves the mark (rule FR6): it vouches for fresh ranks only.
func (w Worker) received(i int) load.Instant {
	r := &w.Ranks[i]
	if r.Freshness == load.Fresh {
		return max(r.received, w.refreshed)
	}
	return r.received
}

func (w Worker) oldestFresh() load.Instant {
	if w.oldest == 0 {
		return 0
	}
	return max(w.oldest, w.refreshed)
}
