package engine

import (
	"math"

	"github.com/loadmonitor/loadmonitor/load"
)

// gauges are the figures of a rank that an engine smooths between two collections.
type gauges struct {
	at   float64 // of the last collection
	last tally   // at the last collection

	genThroughput     float64
	prefillThroughput float64 // 0 until the first prefill
	cacheHitRate      float64
}

const (
	throughputWindow = 1.0 // seconds over which throughput is smoothed
	hitRateWeight    = 0.1 // of the newest prompt in the hit rate
)

// admitted notes how much of a prompt was cached.
func (g *gauges) admitted(req request) {
	hit := 1 - float64(req.uncached)/float64(req.prompt)
	g.cacheHitRate += hitRateWeight * (hit - g.cacheHitRate)
}

// collect moves the figures to the present.
func (r *rank) collect() {
	g := &r.gauge
	dt := r.now - g.at
	if dt <= 0 {
		return
	}
	made := r.count.generated - g.last.generated
	if made == 0 && len(r.running) == 0 {
		g.genThroughput = 0 // an idle rank says so at once
	} else {
		g.genThroughput += (1 - math.Exp(-dt/throughputWindow)) * (made/dt - g.genThroughput)
	}
	if busy := r.count.busy - g.last.busy; busy > 0 {
		rate := (r.count.computed - g.last.computed) / busy
		if g.prefillThroughput == 0 {
			g.prefillThroughput = rate
		} else {
			g.prefillThroughput += (1 - math.Exp(-busy/throughputWindow)) * (rate - g.prefillThroughput)
		}
	}
	g.at, g.last = r.now, r.count
}

// load tells what an engine of this kind tells of the rank. A prefill engine knows no utilisation.
func (r *rank) load(number int32, sampledUnixMs int64) load.RankLoad {
	l := load.RankLoad{DPRank: number, SnapshotTimeUnixMs: sampledUnixMs}
	used := int64(r.used())
	usage := float64(used) / float64(r.p.maxTokens)
	l.SetInt(load.NumRunningReqs, int64(r.active()))
	l.SetInt(load.NumWaitingReqs, int64(r.waiting.len()))
	l.SetInt(load.NumWaitingUncachedTokens, r.waitingUncached)
	l.SetInt(load.NumUsedTokens, used)
	l.SetInt(load.NumTotalTokens, used+r.waitingPrompt)
	l.SetInt(load.MaxTotalNumTokens, r.p.maxTokens)
	l.SetInt(load.MaxRunningRequests, int64(r.p.maxRunning))
	l.SetFloat(load.TokenUsage, usage)
	l.SetFloat(load.GenThroughput, r.gauge.genThroughput)
	l.SetFloat(load.CacheHitRate, r.gauge.cacheHitRate)
	if r.p.decodes {
		l.SetFloat(load.Utilization, max(usage, float64(r.active())/float64(r.p.maxRunning)))
	}
	if r.p.prefills {
		l.SetInt(load.TotalPrefillUncachedTokens, int64(r.count.computed))
		l.SetInt(load.TotalPrefillBusyUs, int64(1e6*r.count.busy))
	}
	l.SetFloat(load.PrefillThroughput, r.gauge.prefillThroughput)
	return l
}

// starting is what an engine tells of a rank before its weights are loaded: no capacity, which is not idleness.
func starting(number int32, sampledUnixMs int64) load.RankLoad {
	l := load.RankLoad{DPRank: number, SnapshotTimeUnixMs: sampledUnixMs}
	for s := range load.TotalPrefillUncachedTokens {
		l.SetInt(s, 0)
	}
	for s := range load.NumFloatSignals {
		l.SetFloat(s, 0)
	}
	return l
}
