package watch

import (
	"bytes"
	"math"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/loadmonitor/loadmonitor/load"
)

// Field numbers of loadmonitor.v1.Worker.
const (
	workerHandle            protowire.Number = 1
	workerID                protowire.Number = 2
	workerURL               protowire.Number = 3
	workerRole              protowire.Number = 4
	workerModels            protowire.Number = 5
	workerZone              protowire.Number = 6
	workerTransport         protowire.Number = 7
	workerFreshness         protowire.Number = 8
	workerReason            protowire.Number = 9
	workerSourceInstance    protowire.Number = 10
	workerSequence          protowire.Number = 11
	workerRestarts          protowire.Number = 12
	workerAggregate         protowire.Number = 13
	workerRanks             protowire.Number = 14
	workerExpectedRanks     protowire.Number = 15
	workerOldestReceivedUs  protowire.Number = 16
	workerFreshnessWindowMs protowire.Number = 17
	workerAnomalies         protowire.Number = 18
	workerLastError         protowire.Number = 19
	workerTransportReason   protowire.Number = 20
)

// Field numbers of loadmonitor.v1.Rank and loadmonitor.v1.Aggregate. The signals follow in the order of load.IntSignal and
// load.FloatSignal.
const (
	rankDPRank      protowire.Number = 1
	rankFreshness   protowire.Number = 2
	rankReceivedUs  protowire.Number = 3
	rankReason      protowire.Number = 4
	rankSampleAgeMs protowire.Number = 5
	rankFirstInt    protowire.Number = 6
	rankFirstFloat                   = rankFirstInt + protowire.Number(load.NumIntSignals)

	aggregateRankCount protowire.Number = 1
)

var aggregateInts = [load.NumIntFigures]protowire.Number{
	load.SumRunningReqs:           2,
	load.SumWaitingReqs:           3,
	load.SumWaitingUncachedTokens: 4,
	load.SumUsedTokens:            5,
	load.SumTotalTokens:           6,
	load.SumMaxTotalTokens:        7,
	load.SumMaxRunningRequests:    8,
	load.TotalRequests:            10,
	load.FreeTokens:               11,
	load.AvailableSlots:           12,
	load.MaxRankWaitingReqs:       17,
}

var aggregateFloats = [load.NumFloatFigures]protowire.Number{
	load.SumGenThroughput:   9,
	load.QueuePressure:      13,
	load.RequestUtilization: 14,
	load.WeightedTokenUsage: 15,
	load.MaxRankTokenUsage:  16,
	load.PrefillRate:        18,
	load.PrefillQueueMs:     19,
}

// wireWorker is one worker's state as the wire form of loadmonitor.v1.Worker, as of its last change: refresh marks travel
// beside it. The ranks stand last, so that one encoding serves views with and without them.
type wireWorker struct {
	bytes []byte
	ranks int // where the ranks begin
}

// of returns the wire form for a view.
func (w *wireWorker) of(v *view) []byte {
	if v.ranks {
		return w.bytes
	}
	return w.bytes[:w.ranks]
}

// encoded returns the wire form of a worker's state, made by the first who asks (rule W7).
func encoded(ws *load.WorkerStatus) *wireWorker {
	return ws.Memo.Get(func() any { return encodeWorker(ws) }).(*wireWorker)
}

// drafts are where wire forms grow: what is kept of thousands of workers has no spare bytes. *[]byte.
var drafts = sync.Pool{New: func() any { return new([]byte) }}

// maxDraft bounds what a draft keeps, bytes: more than 64 ranks take.
const maxDraft = 16 << 10

func encodeWorker(ws *load.WorkerStatus) *wireWorker {
	draft := drafts.Get().(*[]byte)
	b, ranks := appendWorker((*draft)[:0], ws)
	w := &wireWorker{bytes: bytes.Clone(b), ranks: ranks}
	if cap(b) <= maxDraft {
		*draft = b
	}
	drafts.Put(draft)
	return w
}

// appendWorker appends the wire form of a worker and returns where its ranks begin.
func appendWorker(b []byte, ws *load.WorkerStatus) (_ []byte, ranks int) {
	b = appendUint(b, workerHandle, uint64(ws.Handle))
	b = appendString(b, workerID, ws.Worker.ID)
	b = appendString(b, workerURL, ws.Worker.URL)
	b = appendUint(b, workerRole, uint64(ws.Worker.Role))
	for _, m := range ws.Worker.Models {
		b = protowire.AppendTag(b, workerModels, protowire.BytesType)
		b = protowire.AppendString(b, m)
	}
	b = appendString(b, workerZone, ws.Worker.Zone)
	b = appendUint(b, workerTransport, uint64(ws.Worker.Transport))
	b = appendUint(b, workerFreshness, uint64(ws.Freshness))
	b = appendString(b, workerReason, ws.Reason)
	b = appendString(b, workerSourceInstance, ws.SourceInstance)
	b = appendUint(b, workerSequence, ws.Sequence)
	b = appendUint(b, workerRestarts, uint64(ws.Restarts))
	b = appendMessage(b, workerAggregate, func(b []byte) []byte { return appendAggregate(b, &ws.Aggregate) })
	b = appendUint(b, workerExpectedRanks, uint64(max(0, ws.Worker.ExpectedRanks)))
	unmarked := load.Entry{WorkerStatus: ws}
	b = appendUint(b, workerOldestReceivedUs, uint64(unmarked.OldestReceived()))
	b = appendUint(b, workerFreshnessWindowMs, uint64(ws.Window.Milliseconds()))
	for _, name := range ws.Anomalies.Names() {
		b = protowire.AppendTag(b, workerAnomalies, protowire.BytesType)
		b = protowire.AppendString(b, name)
	}
	b = appendString(b, workerLastError, ws.LastError)
	b = appendString(b, workerTransportReason, ws.Worker.TransportReason)
	ranks = len(b)
	for i := range ws.Ranks {
		b = appendMessage(b, workerRanks, func(b []byte) []byte { return appendRank(b, &ws.Ranks[i], ws.RankReason(i)) })
	}
	return b, ranks
}

func appendAggregate(b []byte, a *load.Aggregate) []byte {
	b = appendUint(b, aggregateRankCount, uint64(a.RankCount))
	for f, number := range aggregateInts {
		if n, ok := a.Int(load.IntFigure(f)); ok {
			b = appendKnownInt(b, number, n)
		}
	}
	for f, number := range aggregateFloats {
		if x, ok := a.Float(load.FloatFigure(f)); ok {
			b = appendKnownFloat(b, number, x)
		}
	}
	return b
}

func appendRank(b []byte, r *load.Rank, reason string) []byte {
	b = appendUint(b, rankDPRank, uint64(r.Load.DPRank))
	b = appendUint(b, rankFreshness, uint64(r.Freshness))
	b = appendUint(b, rankReceivedUs, uint64(r.Received))
	b = appendString(b, rankReason, reason)
	if r.SampleAgeMs >= 0 {
		b = appendKnownInt(b, rankSampleAgeMs, int64(r.SampleAgeMs))
	}
	for s := range load.NumIntSignals {
		if n, ok := r.Load.Int(s); ok {
			b = appendKnownInt(b, rankFirstInt+protowire.Number(s), n)
		}
	}
	for s := range load.NumFloatSignals {
		if x, ok := r.Load.Float(s); ok {
			b = appendKnownFloat(b, rankFirstFloat+protowire.Number(s), x)
		}
	}
	return b
}

// appendUint appends a field without presence: zero is not written.
func appendUint(b []byte, number protowire.Number, n uint64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), n)
}

// appendString appends a field without presence: empty is not written.
func appendString(b []byte, number protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), s)
}

// appendKnownInt appends an optional field: a zero that was told is written (rule VAL1).
func appendKnownInt(b []byte, number protowire.Number, n int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), uint64(n))
}

func appendKnownFloat(b []byte, number protowire.Number, x float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, number, protowire.Fixed64Type), math.Float64bits(x))
}

// appendMessage appends a message field, also an empty one. The length is not known before the content is written, so
// content that turns out longer than one byte can announce is moved by the difference.
func appendMessage(b []byte, number protowire.Number, content func([]byte) []byte) []byte {
	b = append(protowire.AppendTag(b, number, protowire.BytesType), 0)
	start := len(b)
	b = content(b)
	n := len(b) - start
	if extra := protowire.SizeVarint(uint64(n)) - 1; extra > 0 {
		b = append(b, make([]byte, extra)...)
		copy(b[start+extra:], b[start:start+n])
	}
	protowire.AppendVarint(b[:start-1], uint64(n))
	return b
}
