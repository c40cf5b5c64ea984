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

// page writes one snapshot.
type page struct {
	b          []byte
	clock      clock
	captured   load.Instant
	capturedMs int64 // wall clock of the same moment
}

// appendSnapshot appends the JSON of a snapshot and a newline, without one in between: a body and a line of a watch alike.
func appendSnapshot(b []byte, s *load.Snapshot) []byte {
	p := page{b: b, captured: s.Captured, capturedMs: s.CapturedAt.UnixMilli()}
	p.raw(`{"enabled":true,"epoch":`)
	p.b = appendString(p.b, s.Epoch)
	p.raw(`,"version":`)
	p.b = strconv.AppendUint(p.b, s.Version, 10)
	p.raw(`,"captured_at":`)
	p.b = p.clock.append(p.b, p.capturedMs)
	p.summary(s.State, s.Summary)
	p.raw(`,"workers":[`)
	first := true
	for e := range s.Workers.All() {
		if !first {
			p.raw(`,`)
		}
		first = false
		p.worker(e)
	}
	p.raw("]}\n")
	return p.b
}

func (p *page) raw(s string) { p.b = append(p.b, s...) }

func (p *page) count(key string, n int) {
	p.raw(key)
	p.b = strconv.AppendInt(p.b, int64(n), 10)
}

func (p *page) text(key, s string) {
	p.raw(key)
	p.b = appendText(p.b, s)
}

// word writes one of the domain's words; "unspecified" is no word of the API but something unknown.
func (p *page) word(key, s string) {
	if s == "unspecified" {
		s = ""
	}
	p.text(key, s)
}

func (p *page) texts(key string, list []string) {
	p.raw(key)
	p.raw(`[`)
	for i, s := range list {
		if i > 0 {
			p.raw(`,`)
		}
		p.b = appendString(p.b, s)
	}
	p.raw(`]`)
}

func (p *page) summary(state load.FleetState, s load.Summary) {
	p.word(`,"summary":{"state":`, state.String())
	p.count(`,"workers":`, s.Workers)
	p.count(`,"fresh":`, s.Fresh)
	p.count(`,"stale":`, s.Stale)
	p.count(`,"missing":`, s.Missing)
	p.count(`,"incomplete":`, s.Incomplete)
	p.count(`,"unreachable":`, s.Unreachable)
	p.raw(`,"complete":`)
	p.b = strconv.AppendBool(p.b, s.Complete())
	p.raw(`}`)
}

func (p *page) worker(e *load.Entry) {
	w := &e.Worker
	received := workerReceived(e)
	p.raw(`{"worker_id":`)
	p.b = appendString(p.b, w.ID)
	p.raw(`,"url":`)
	p.b = appendString(p.b, w.URL)
	p.word(`,"mode":`, w.Role.String())
	p.texts(`,"model_ids":`, w.Models)
	p.text(`,"zone":`, w.Zone)
	p.word(`,"transport":`, w.Transport.String())
	p.word(`,"freshness":`, e.Freshness.String())
	p.text(`,"reason":`, e.Reason)
	p.texts(`,"anomalies":`, e.Anomalies.Names())
	p.text(`,"source_instance_id":`, e.SourceInstance)
	p.raw(`,"sequence_id":`)
	p.sequence(e, received != 0)
	p.raw(`,"report_time_unix_ms":`)
	p.b = appendKnown(p.b, e.ReportTimeUnixMs)
	p.text(`,"last_error":`, e.LastError)
	p.receipt(received)
	p.raw(`,"expires_at":`)
	if received == 0 {
		p.raw(`null`)
	} else {
		p.b = p.clock.append(p.b, p.capturedMs-p.age(received)+e.Window.Milliseconds())
	}
	p.count(`,"restarts":`, int(e.Restarts))
	p.raw(`,"expected_ranks":`)
	p.b = appendKnown(p.b, int64(w.ExpectedRanks))
	p.raw(`,"freshness_window_ms":`)
	p.b = appendKnown(p.b, e.Window.Milliseconds())
	p.aggregate(&e.Aggregate)
	p.raw(`,"ranks":[`)
	for i := range e.Ranks {
		if i > 0 {
			p.raw(`,`)
		}
		p.rank(&e.Ranks[i], e.RankReceived(i))
	}
	p.raw(`]}`)
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

// sequence writes the newest sequence. A ZMQ publisher counts from 0, so there 0 is a sequence once something arrived;
// elsewhere it says that nothing did, or that the transport has none.
func (p *page) sequence(e *load.Entry, received bool) {
	if e.NewestSequence == 0 && !(received && e.Worker.Transport == load.TransportZMQ) {
		p.raw(`null`)
		return
	}
	p.b = strconv.AppendUint(p.b, e.NewestSequence, 10)
}

// receipt writes when something was received, by the wall clock and as an age. Both say the same: received_at is
// captured_at less received_age_ms.
func (p *page) receipt(received load.Instant) {
	p.raw(`,"received_at":`)
	if received == 0 {
		p.raw(`null,"received_age_ms":null`)
		return
	}
	age := p.age(received)
	p.b = p.clock.append(p.b, p.capturedMs-age)
	p.raw(`,"received_age_ms":`)
	p.b = strconv.AppendInt(p.b, age, 10)
}

// age returns the whole milliseconds from an instant to the capture.
func (p *page) age(t load.Instant) int64 {
	return max(0, int64(p.captured-t)) / int64(time.Millisecond/time.Microsecond)
}

func (p *page) aggregate(a *load.Aggregate) {
	p.count(`,"aggregate":{"rank_count":`, int(a.RankCount))
	for i, key := range intFigureKeys {
		v, known := a.Int(load.IntFigure(i))
		p.int(key, v, known)
	}
	for i, key := range floatFigureKeys {
		v, known := a.Float(load.FloatFigure(i))
		p.float(key, v, known)
	}
	p.raw(`}`)
}

func (p *page) rank(r *load.Rank, received load.Instant) {
	p.count(`{"dp_rank":`, int(r.Load.DPRank))
	p.word(`,"freshness":`, r.Freshness.String())
	p.text(`,"reason":`, r.Reason)
	p.receipt(received)
	p.int(`,"sample_age_ms":`, r.SampleAgeMs, r.SampleAgeMs >= 0)
	p.raw(`,"snapshot_time_unix_ms":`)
	p.b = appendKnown(p.b, r.Load.SnapshotTimeUnixMs)
	for i, key := range intSignalKeys {
		v, known := r.Load.Int(load.IntSignal(i))
		p.int(key, v, known)
	}
	for i, key := range floatSignalKeys {
		v, known := r.Load.Float(load.FloatSignal(i))
		p.float(key, v, known)
	}
	p.raw(`}`)
}

func (p *page) int(key string, v int64, known bool) {
	p.raw(key)
	if !known {
		p.raw(`null`)
		return
	}
	p.b = strconv.AppendInt(p.b, v, 10)
}

func (p *page) float(key string, v float64, known bool) {
	p.raw(key)
	if !known {
		p.raw(`null`)
		return
	}
	p.b = appendFloat(p.b, v)
}
