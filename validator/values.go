package validator

import "github.com/loadmonitor/loadmonitor/load"

// Normalise gives the values of a rank that passed Shape their meaning: a negative share means unknown, and so does a
// capacity of zero. Pushed prefill throughput of 0 is unknown until the source has sent one above 0 (older engines do
// not have the field); prefillSeen says that it has, and the result is prefillSeen from now on.
func Normalise(r *load.RankLoad, prefillSeen bool) bool {
	r.SnapshotTimeUnixMs = max(0, r.SnapshotTimeUnixMs) // no time before 1970 was told in earnest
	for _, s := range []load.FloatSignal{load.TokenUsage, load.CacheHitRate, load.Utilization} {
		if v, ok := r.Float(s); ok && v < 0 {
			r.UnsetFloat(s)
		}
	}
	for _, s := range []load.IntSignal{load.MaxTotalNumTokens, load.MaxRunningRequests} {
		if v, ok := r.Int(s); ok && v == 0 {
			r.UnsetInt(s)
		}
	}
	if v, ok := r.Float(load.PrefillThroughput); ok {
		if v > 0 {
			return true
		}
		if !prefillSeen {
			r.UnsetFloat(load.PrefillThroughput)
		}
	}
	return prefillSeen
}

// Starting reports whether a normalised rank lacks a capacity that a running engine always has (rule FR5). It holds for
// push, dial-in, maps and /v1/loads; in LoadStat arrays a missing capacity means only that it is unknown.
func Starting(r *load.RankLoad) bool {
	_, tokens := r.Int(load.MaxTotalNumTokens)
	_, requests := r.Int(load.MaxRunningRequests)
	return !tokens || !requests
}

// OverCapacity reports whether a rank uses more than it has. That is real life, accepted as told (rule VAL2).
func OverCapacity(r *load.RankLoad) bool {
	return above(r, load.NumUsedTokens, load.MaxTotalNumTokens) || above(r, load.NumRunningReqs, load.MaxRunningRequests)
}

func above(r *load.RankLoad, used, capacity load.IntSignal) bool {
	u, ok := r.Int(used)
	c, known := r.Int(capacity)
	return ok && known && u > c
}
