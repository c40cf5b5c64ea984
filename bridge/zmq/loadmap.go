package zmq

import (
	"math"

	"github.com/loadmonitor/loadmonitor/load"
)

// The map form omits a key whose value is the default, zero, so all of these are told by every map.
var (
	mapInts = [...]load.IntSignal{
		load.NumRunningReqs, load.NumWaitingReqs, load.NumWaitingUncachedTokens, load.NumUsedTokens, load.NumTotalTokens,
		load.MaxTotalNumTokens, load.MaxRunningRequests,
	}
	mapFloats = [...]load.FloatSignal{load.TokenUsage, load.GenThroughput, load.CacheHitRate, load.Utilization}
)

// Keys of the map form beside the signals, after those.
const (
	keyTimestamp = len(mapInts) + len(mapFloats) + iota
	keyRank
	numMapKeys
	keyUnknown = -1
)

// mapKey finds a key of ours: the position of an int signal, of a float signal after those, or one of the constants above.
func mapKey(key []byte) int {
	if k, known := mapKeys[string(key)]; known {
		return k
	}
	return keyUnknown
}

var mapKeys = func() map[string]int {
	keys := map[string]int{"timestamp": keyTimestamp, "dp_rank": keyRank}
	for i, s := range mapInts {
		keys[s.String()] = i
	}
	for i, s := range mapFloats {
		keys[s.String()] = len(mapInts) + i
	}
	return keys
}()

// loadMap decodes the map form. Unknown keys are skipped, sections among them; a repeated key counts and its last value
// wins.
func (d *Decoder) loadMap(out *Decoded) error {
	n, err := d.in.DecodeMapLen()
	if err != nil {
		return rejectPayload("", "is cut off")
	}
	// Every key and every value takes at least one byte.
	if 2*n > d.bytes.Len() {
		return rejectPayload("", "announces more keys than it has bytes")
	}
	for _, s := range mapInts {
		out.Load.SetInt(s, 0)
	}
	for _, s := range mapFloats {
		out.Load.SetFloat(s, 0)
	}
	var seen [numMapKeys]bool
	for range n {
		key, err := d.word()
		if err != nil {
			return err
		}
		k := mapKey(key)
		if k == keyUnknown {
			if err := d.skip(1); err != nil {
				return err
			}
			continue
		}
		if seen[k] {
			out.RepeatedKeys++
		}
		seen[k] = true
		if err := d.mapValue(k, out); err != nil {
			return err
		}
	}
	return nil
}

func (d *Decoder) mapValue(k int, out *Decoded) error {
	switch {
	case k < len(mapInts):
		v, err := d.count(mapInts[k].String())
		if err != nil {
			return err
		}
		out.Load.SetInt(mapInts[k], v)
		return nil
	case k < len(mapInts)+len(mapFloats):
		return d.mapFloat(mapFloats[k-len(mapInts)], out)
	case k == keyTimestamp:
		seconds, _, err := d.number("timestamp")
		if err != nil {
			return err
		}
		out.Load.SnapshotTimeUnixMs = unixMs(seconds)
		return nil
	}
	return d.toldRank(out)
}

func (d *Decoder) mapFloat(s load.FloatSignal, out *Decoded) error {
	f, told, err := d.number(s.String())
	switch {
	case err != nil:
		return err
	case f < 0 && s == load.GenThroughput:
		return rejectPayload(s.String(), "is negative")
	case !told || f < 0:
		// Engines say -1 for no figure (rule VAL2).
		out.Load.UnsetFloat(s)
	default:
		out.Load.SetFloat(s, f)
	}
	return nil
}

// maxUnixSeconds is far from now and keeps milliseconds exact in a float64.
const maxUnixSeconds = 1e11

// unixMs turns seconds since 1970 into milliseconds; what is no plausible time is 0: not told.
func unixMs(seconds float64) int64 {
	if seconds <= 0 || seconds > maxUnixSeconds {
		return 0
	}
	return int64(math.Round(seconds * 1000))
}
