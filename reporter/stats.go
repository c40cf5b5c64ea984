package reporter

import (
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/status"
)

// TargetState is where the task of a target stands.
type TargetState uint8

const (
	Connecting      TargetState = iota // dialling, or the first report is on its way
	Streaming                          // reports go out
	BackingOff                         // the stream failed and is tried again after a delay
	AwaitingRenewal                    // the monitor refused; only a renewal starts the next try
)

// String returns the word for logs and JSON.
func (s TargetState) String() string {
	switch s {
	case Streaming:
		return "streaming"
	case BackingOff:
		return "backing_off"
	case AwaitingRenewal:
		return "awaiting_renewal"
	}
	return "connecting"
}

// MarshalText writes the word.
func (s TargetState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Stats are the reporter's figures since New. Counters only rise.
type Stats struct {
	Sent       uint64 `json:"sent"`       // reports handed to the transport
	Skipped    uint64 `json:"skipped"`    // periods that were missed
	Reconnects uint64 `json:"reconnects"` // tries after the first of each target
	// Targets are those under a live lease, sorted by address.
	Targets []TargetStats `json:"targets"`
}

// TargetStats are the figures of one target since it was registered.
type TargetStats struct {
	Target     netip.AddrPort `json:"target"`
	WorkerAddr string         `json:"worker_addr"`
	State      TargetState    `json:"state"`
	IntervalMs int64          `json:"report_interval_ms"`
	LeaseMs    int64          `json:"lease_remaining_ms"`
	Sent       uint64         `json:"sent"`
	Skipped    uint64         `json:"skipped"`
	Reconnects uint64         `json:"reconnects"`
	LastError  string         `json:"last_error"` // why the last stream ended; empty after a report
}

// Stats returns the figures of now.
func (r *Reporter) Stats() Stats {
	s := Stats{
		Sent:       r.sent.Load(),
		Skipped:    r.skipped.Load(),
		Reconnects: r.reconnects.Load(),
		Targets:    []TargetStats{},
	}
	now := time.Now()
	r.mu.Lock()
	for _, t := range r.targets {
		s.Targets = append(s.Targets, TargetStats{
			Target:     t.addr,
			WorkerAddr: t.worker,
			State:      t.state,
			IntervalMs: t.reg.interval.Milliseconds(),
			LeaseMs:    max(0, t.reg.expires.Sub(now).Milliseconds()),
			Sent:       t.sent,
			Skipped:    t.skipped,
			Reconnects: t.reconnects,
			LastError:  t.lastError,
		})
	}
	r.mu.Unlock()
	slices.SortFunc(s.Targets, func(a, b TargetStats) int { return a.Target.Compare(b.Target) })
	return s
}

// sentOne counts one report and the periods missed since the one before.
func (t *target) sentOne(missed uint64) {
	t.r.sent.Add(1)
	t.r.skipped.Add(missed)
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	t.sent++
	t.skipped += missed
	t.state = Streaming
	t.lastError = ""
}

// endStream records why a stream ended and returns the revision of the registration at that moment: only a newer one
// counts as a renewal since.
func (t *target) endStream(err error, next verdict) uint64 {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	t.lastError = bounded(reasonOf(err), maxLastError)
	t.state = BackingOff
	if next == awaitRenewal {
		t.state = AwaitingRenewal
	}
	return t.reg.revision
}

func (t *target) beginReconnect() {
	t.r.reconnects.Add(1)
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	t.reconnects++
	t.state = Connecting
}

func reasonOf(err error) string {
	if err == nil {
		return "the monitor ended the stream with OK"
	}
	return status.Convert(err).Message()
}
