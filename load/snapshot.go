package load

import (
	"sync"
	"time"
)

// Anomalies is a set of signs of trouble that do not make a load unusable.
type Anomalies uint32

const (
	// OverCapacity: a rank uses more tokens or runs more requests than its capacity (rule VAL2).
	OverCapacity Anomalies = 1 << iota
	// SourceConflict: a replaced source instance tried to come back while this one reports (rule ID4).
	SourceConflict
)

// anomalyNames is sorted, so that Names is.
var anomalyNames = []struct {
	bit  Anomalies
	name string
}{
	{OverCapacity, "over_capacity"},
	{SourceConflict, "source_conflict"},
}

// Names returns the words used in proto and JSON, sorted.
func (a Anomalies) Names() []string {
	var names []string
	for _, n := range anomalyNames {
		if a&n.bit != 0 {
			names = append(names, n.name)
		}
	}
	return names
}

// Rank is one DP rank in a snapshot. It holds no pointers, so that garbage collection does not look into ranks, which are
// most of a large fleet's memory.
type Rank struct {
	Load     RankLoad
	Received Instant // when its newest report arrived, as of the worker's last change; see Entry.RankReceived
	// SampleAgeMs is how old the sample was when the engine reported it, by the engine's own two times, at most 24 days; -1:
	// not told.
	SampleAgeMs int32
	Freshness   Freshness // Fresh, Stale or Missing
}

// WorkerStatus is what is known of one worker as of its last change. It is immutable and shared by all snapshots until the
// worker changes again.
type WorkerStatus struct {
	Worker         *Worker // as registered; shared until registration says something else
	Handle         uint32  // stands for the worker within one epoch; never used again for another
	Freshness      Freshness
	Reason         string // why it is not fresh, why a report was refused, or why nothing feeds it
	Anomalies      Anomalies
	SourceInstance string
	Sequence       uint64 // of the report that brought this content
	Restarts       uint32
	LastError      string
	Window         time.Duration // how long a report keeps a rank fresh
	Aggregate      Aggregate
	Ranks          []Rank   // sorted by DPRank
	RankReasons    []string // why each rank is not fresh; nil where all are. See RankReason

	// ChangedVersion is the snapshot version that first showed this content.
	ChangedVersion uint64
	// DescribedVersion is the version at which id, role, models or zone last changed: what a filter looks at.
	DescribedVersion uint64

	// Memo keeps the encoded form, made on first need.
	Memo Memo
}

// RankReason returns why rank i is not fresh; empty where it is.
func (s *WorkerStatus) RankReason(i int) string {
	if s.RankReasons == nil {
		return ""
	}
	return s.RankReasons[i]
}

// Entry is one worker's cell in a snapshot: its content, and what a report with unchanged values still moves (rule FR6).
type Entry struct {
	*WorkerStatus

	// RefreshedVersion is the version of the last refresh mark; 0: none since the content changed.
	RefreshedVersion uint64
	// Refreshed is the mark: every fresh rank was received then or later. 0: none since the content changed.
	Refreshed Instant

	// Of the newest accepted report, changed or not.
	NewestSequence   uint64
	ReportTimeUnixMs int64 // by the engine's clock; 0: not told
}

// RankReceived returns when the newest report of rank i arrived, or a time before that which the last mark vouches for.
func (e *Entry) RankReceived(i int) Instant {
	r := &e.Ranks[i]
	if r.Freshness == Fresh {
		return max(r.Received, e.Refreshed)
	}
	return r.Received
}

// OldestReceived returns when the oldest of the fresh ranks was received; 0 when no rank is fresh.
func (e *Entry) OldestReceived() Instant {
	var oldest Instant
	for i := range e.Ranks {
		if e.Ranks[i].Freshness != Fresh {
			continue
		}
		if t := e.RankReceived(i); oldest == 0 || t < oldest {
			oldest = t
		}
	}
	return oldest
}

// Changed returns the version at which anything of the entry last changed, marks included.
func (e *Entry) Changed() uint64 { return max(e.ChangedVersion, e.RefreshedVersion) }

// Summary counts workers by freshness.
type Summary struct {
	Workers, Fresh, Stale, Missing, Incomplete, Unreachable int
}

// Add counts one worker n times; n is 1 or -1.
func (s *Summary) Add(f Freshness, n int) {
	s.Workers += n
	switch f {
	case Fresh:
		s.Fresh += n
	case Stale:
		s.Stale += n
	case Missing:
		s.Missing += n
	case Incomplete:
		s.Incomplete += n
	case Unreachable:
		s.Unreachable += n
	}
}

// Complete reports whether there is a worker and every worker is fresh (rule SNAP2).
func (s Summary) Complete() bool { return s.Workers > 0 && s.Fresh == s.Workers }

// Removal remembers that a worker left.
type Removal struct {
	Handle  uint32
	Version uint64 // the first version without it
}

// Snapshot is one published version of the fleet: immutable, shared by every reader (rules SNAP1 and SNAP2).
type Snapshot struct {
	Epoch   string // one process life of the monitor, opaque
	Version uint64 // rises by one per publication within an epoch; the first is 1

	CapturedAt time.Time // wall clock of the publication
	Captured   Instant   // the same moment on the monotonic clock

	State   FleetState
	Summary Summary
	// StateVersion is the version at which State last changed.
	StateVersion uint64

	Workers Table // sorted by id

	// Removals holds the newest removals, oldest first. Older ones are forgotten: a reader whose base is below
	// RemovalsFrom needs the full picture.
	Removals     []Removal
	RemovalsFrom uint64

	// Memo keeps what readers derive from this version, made on first need.
	Memo Memo
}

// Publication is what readers see at one moment: the newest snapshot together with the channel that is closed when there
// is a newer publication, so that nobody pairs a new snapshot with an old channel.
type Publication struct {
	Snapshot *Snapshot
	// Beat rises with every heartbeat of the publisher (rule W4). A publication with a new beat and the same snapshot is a
	// heartbeat and nothing else.
	Beat uint64
	Next <-chan struct{}
}

// Memo is a slot for one value that is derived from its immutable owner at first need and shared from then on. The
// owner's package does not know what it holds. The zero value is empty.
type Memo struct {
	once  sync.Once
	value any
}

// Get returns the value, made by the first caller.
func (m *Memo) Get(make func() any) any {
	m.once.Do(func() { m.value = make() })
	return m.value
}
