package pub

import (
	"bytes"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/loadmonitor/loadmonitor/load"
)

const (
	tag     = "LoadStat"
	keyTime = "timestamp"
	keyRank = "dp_rank"
)

var (
	statHead = [...]load.IntSignal{load.NumRunningReqs, load.NumWaitingReqs, load.NumUsedTokens, load.MaxTotalNumTokens}
	// statTail comes all together or not at all.
	statTail = [...]load.IntSignal{
		load.NumWaitingUncachedTokens, load.NumTotalTokens, load.MaxRunningRequests, load.TotalPrefillUncachedTokens,
		load.TotalPrefillBusyUs,
	}

	mapInts = [...]load.IntSignal{
		load.NumRunningReqs, load.NumWaitingReqs, load.NumWaitingUncachedTokens, load.NumUsedTokens, load.NumTotalTokens,
		load.MaxTotalNumTokens, load.MaxRunningRequests,
	}
	mapFloats = [...]load.FloatSignal{load.TokenUsage, load.GenThroughput, load.CacheHitRate, load.Utilization}
)

// timeBytes is how far the time of the sample reaches into a map: the map's header, the key with its own, and the value
// with its own.
const timeBytes = 1 + 1 + len(keyTime) + 1 + 8

// encoder writes payloads. It allocates nothing once its buffer has grown. The library's errors are those of the writer,
// and a buffer in memory has none.
type encoder struct {
	buf bytes.Buffer
	out *msgpack.Encoder
}

func newEncoder() *encoder {
	e := &encoder{}
	e.out = msgpack.NewEncoder(&e.buf)
	return e
}

// encode returns the payload, which is good until the next call, and the number of leading bytes in which two payloads of
// the same load may differ, because they tell when it was sampled.
func (e *encoder) encode(form Form, l *load.RankLoad, now time.Time) (payload []byte, volatile int) {
	e.buf.Reset()
	if form == LoadSnapshot {
		e.snapshot(l, now)
		return e.buf.Bytes(), timeBytes
	}
	e.stat(l, form == LoadStat)
	return e.buf.Bytes(), 0
}

// stat writes the array. It has no word for "not told", so that is 0.
func (e *encoder) stat(l *load.RankLoad, complete bool) {
	n := 1 + len(statHead) + 1
	if complete {
		n += len(statTail)
	}
	_ = e.out.EncodeArrayLen(n)
	_ = e.out.EncodeString(tag)
	for _, s := range statHead {
		e.int(l, s)
	}
	_ = e.out.EncodeInt(int64(l.DPRank))
	if !complete {
		return
	}
	for _, s := range statTail {
		e.int(l, s)
	}
}

func (e *encoder) int(l *load.RankLoad, s load.IntSignal) {
	v, _ := l.Int(s)
	_ = e.out.EncodeInt(v)
}

// snapshot writes the map. The time comes first and is always there; everything else is left out at zero.
func (e *encoder) snapshot(l *load.RankLoad, now time.Time) {
	keys := 1
	if l.DPRank != 0 {
		keys++
	}
	for _, s := range mapInts {
		if v, _ := l.Int(s); v != 0 {
			keys++
		}
	}
	for _, s := range mapFloats {
		if mapFloat(l, s) != 0 {
			keys++
		}
	}
	sampled := l.SnapshotTimeUnixMs
	if sampled == 0 {
		sampled = now.UnixMilli()
	}
	_ = e.out.EncodeMapLen(keys)
	_ = e.out.EncodeString(keyTime)
	_ = e.out.EncodeFloat64(float64(sampled) / 1000)
	if l.DPRank != 0 {
		_ = e.out.EncodeString(keyRank)
		_ = e.out.EncodeInt(int64(l.DPRank))
	}
	for _, s := range mapInts {
		if v, _ := l.Int(s); v != 0 {
			_ = e.out.EncodeString(s.String())
			_ = e.out.EncodeInt(v)
		}
	}
	for _, s := range mapFloats {
		if v := mapFloat(l, s); v != 0 {
			_ = e.out.EncodeString(s.String())
			_ = e.out.EncodeFloat64(v)
		}
	}
}

// mapFloat returns what the map says of a signal: leaving a key out says 0, so a share that is not known is -1. A
// throughput has no such value.
func mapFloat(l *load.RankLoad, s load.FloatSignal) float64 {
	v, told := l.Float(s)
	if !told && s != load.GenThroughput {
		return -1
	}
	return v
}
