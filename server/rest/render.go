package rest

import (
	"strconv"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// Keys with the punctuation around them, made once from the domain's own tables, so that a signal that is added there
// appears here.
var (
	intSignalKeys   = keys[load.IntSignal](int(load.NumIntSignals))
	floatSignalKeys = keys[load.FloatSignal](int(load.NumFloatSignals))
	intFigureKeys   = keys[load.IntFigure](int(load.NumIntFigures))
	floatFigureKeys = keys[load.FloatFigure](int(load.NumFloatFigures))
)

func keys[T interface {
	~uint8
	String() string
}](n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = `,"` + T(i).String() + `":`
	}
	return out
}

// page writes one snapshot. Its methods append to b and return the result.
type page struct {
	clock      clock
	captured   load.Instant
	capturedMs int64 // wall clock of the same moment
}

// appendSnapshot appends the JSON of a snapshot and a newline, without one in between: a body and a line of a watch alike.
func appendSnapshot(b []byte, s *load.Snapshot) []byte {
	p := page{captured: s.Captured, capturedMs: s.CapturedAt.UnixMilli()}
	b = append(b, `{"enabled":true,"epoch":`...)
	b = appendString(b, s.Epoch)
	b = append(b, `,"version":`...)
	b = strconv.AppendUint(b, s.Version, 10)
	b = append(b, `,"captured_at":`...)
	b = p.clock.append(b, p.capturedMs)
	b = appendSummary(b, s.State, s.Summary)
	b = append(b, `,"workers":[`...)
	first := true
	for e := range s.Workers.All() {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = p.worker(b, e)
	}
	return append(b, "]}\n"...)
}

func appendSummary(b []byte, state load.FleetState, s load.Summary) []byte {
	b = word(b, `,"summary":{"state":`, state.String())
	b = integer(b, `,"workers":`, int64(s.Workers), true)
	b = integer(b, `,"fresh":`, int64(s.Fresh), true)
	b = integer(b, `,"stale":`, int64(s.Stale), true)
	b = integer(b, `,"missing":`, int64(s.Missing), true)
	b = integer(b, `,"incomplete":`, int64(s.Incomplete), true)
	b = integer(b, `,"unreachable":`, int64(s.Unreachable), true)
	b = append(b, `,"complete":`...)
	b = strconv.AppendBool(b, s.Complete())
	return append(b, '}')
}

func (p *page) worker(b []byte, e *load.Entry) []byte {
	w := e.Worker
	received := workerReceived(e)
	windowMs := e.Window.Milliseconds()
	b = append(b, `{"worker_id":`...)
	b = appendString(b, w.ID)
	b = append(b, `,"url":`...)
	b = appendString(b, w.URL)
	b = word(b, `,"mode":`, w.Role.String())
	b = texts(b, `,"model_ids":`, w.Models)
	b = text(b, `,"zone":`, w.Zone)
	b = word(b, `,"transport":`, w.Transport.String())
	b = text(b, `,"transport_reason":`, w.TransportReason)
	b = word(b, `,"freshness":`, e.Freshness.String())
	b = text(b, `,"reason":`, e.Reason)
	b = texts(b, `,"anomalies":`, e.Anomalies.Names())
	b = text(b, `,"source_instance_id":`, e.SourceInstance)
	b = integer(b, `,"sequence_id":`, int64(e.NewestSequence), sequenceKnown(e, received))
	b = integer(b, `,"report_time_unix_ms":`, e.ReportTimeUnixMs, e.ReportTimeUnixMs != 0)
	b = text(b, `,"last_error":`, e.LastError)
	b = p.receipt(b, received)
	b = p.moment(b, `,"expires_at":`, p.age(received)-windowMs, received != 0)
	b = integer(b, `,"restarts":`, int64(e.Restarts), true)
	b = integer(b, `,"expected_ranks":`, int64(w.ExpectedRanks), w.ExpectedRanks != 0)
	b = integer(b, `,"freshness_window_ms":`, windowMs, windowMs != 0)
	b = appendAggregate(b, &e.Aggregate)
	b = append(b, `,"ranks":[`...)
	for i := range e.Ranks {
		if i > 0 {
			b = append(b, ',')
		}
		b = p.rank(b, &e.Ranks[i], e.RankReason(i), e.RankReceived(i))
	}
	return append(b, "]}"...)
}

// workerReceived returns when the worker's load was received: the receipt of the oldest fresh rank, because a figure over
// the ranks is as old as the oldest of them; when no rank is fresh, the newest receipt there is; 0 when there is none.
func workerReceived(e *load.Entry) load.Instant {
	received := e.OldestReceived()
	if received != 0 {
		return received
	}
	for i := range e.Ranks {
		received = max(received, e.RankReceived(i))
	}
	return received
}

// sequenceKnown reports whether there is a newest sequence. A ZMQ publisher counts from 0, so there 0 is a sequence once
// something arrived; elsewhere it says that nothing did, or that the transport has none.
func sequenceKnown(e *load.Entry, received load.Instant) bool {
	return e.NewestSequence != 0 || received != 0 && e.Worker.Transport == load.TransportZMQ
}

func appendAggregate(b []byte, a *load.Aggregate) []byte {
	b = integer(b, `,"aggregate":{"rank_count":`, int64(a.RankCount), true)
	for i, key := range intFigureKeys {
		v, known := a.Int(load.IntFigure(i))
		b = integer(b, key, v, known)
	}
	for i, key := range floatFigureKeys {
		v, known := a.Float(load.FloatFigure(i))
		b = float(b, key, v, known)
	}
	return append(b, '}')
}

func (p *page) rank(b []byte, r *load.Rank, reason string, received load.Instant) []byte {
	b = integer(b, `{"dp_rank":`, int64(r.Load.DPRank), true)
	b = word(b, `,"freshness":`, r.Freshness.String())
	b = text(b, `,"reason":`, reason)
	b = p.receipt(b, received)
	b = integer(b, `,"sample_age_ms":`, int64(r.SampleAgeMs), r.SampleAgeMs >= 0)
	b = integer(b, `,"snapshot_time_unix_ms":`, r.Load.SnapshotTimeUnixMs, r.Load.SnapshotTimeUnixMs != 0)
	for i, key := range intSignalKeys {
		v, known := r.Load.Int(load.IntSignal(i))
		b = integer(b, key, v, known)
	}
	for i, key := range floatSignalKeys {
		v, known := r.Load.Float(load.FloatSignal(i))
		b = float(b, key, v, known)
	}
	return append(b, '}')
}

// receipt appends when something was received, by the wall clock and as an age. Both say the same: received_at is
// captured_at less received_age_ms.
func (p *page) receipt(b []byte, received load.Instant) []byte {
	age := p.age(received)
	b = p.moment(b, `,"received_at":`, age, received != 0)
	return integer(b, `,"received_age_ms":`, age, received != 0)
}

// age returns the whole milliseconds from an instant to the capture.
func (p *page) age(t load.Instant) int64 {
	return max(0, int64(p.captured-t)) / int64(time.Millisecond/time.Microsecond)
}

// moment appends the wall time that lies so many milliseconds before the capture, or null.
func (p *page) moment(b []byte, key string, agoMs int64, known bool) []byte {
	b = append(b, key...)
	if !known {
		return append(b, "null"...)
	}
	return p.clock.append(b, p.capturedMs-agoMs)
}

// The functions below append a key, with the punctuation around it, and its value.

func integer(b []byte, key string, v int64, known bool) []byte {
	b = append(b, key...)
	if !known {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, v, 10)
}

func float(b []byte, key string, v float64, known bool) []byte {
	b = append(b, key...)
	if !known {
		return append(b, "null"...)
	}
	return appendFloat(b, v)
}

// text appends a text of which "" means that there is none.
func text(b []byte, key, s string) []byte {
	b = append(b, key...)
	if s == "" {
		return append(b, "null"...)
	}
	return appendString(b, s)
}

// word appends one of the domain's words; "unspecified" is no word of the API but something unknown.
func word(b []byte, key, s string) []byte {
	if s == "unspecified" {
		s = ""
	}
	return text(b, key, s)
}

func texts(b []byte, key string, list []string) []byte {
	b = append(b, key...)
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}
