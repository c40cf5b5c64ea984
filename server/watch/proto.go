package watch

import (
	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// The enums of load and of the API have the same numbers, so conversions are casts; a test holds them together.

// toProto returns one worker as readers of a whole snapshot get it: with its refresh mark applied.
func toProto(e *load.Entry) *loadmonitorpb.Worker {
	ranks := make([]*loadmonitorpb.Rank, len(e.Ranks))
	for i := range e.Ranks {
		ranks[i] = rankProto(&e.Ranks[i], e.RankReason(i), e.RankReceived(i))
	}
	return loadmonitorpb.Worker_builder{
		Handle:            e.Handle,
		Id:                e.Worker.ID,
		Url:               e.Worker.URL,
		Role:              loadmonitorpb.Role(e.Worker.Role),
		Models:            e.Worker.Models,
		Zone:              e.Worker.Zone,
		Transport:         loadmonitorpb.Transport(e.Worker.Transport),
		Freshness:         loadmonitorpb.Freshness(e.Freshness),
		Reason:            e.Reason,
		SourceInstance:    e.SourceInstance,
		Sequence:          e.Sequence,
		Restarts:          e.Restarts,
		Aggregate:         aggregateProto(&e.Aggregate),
		Ranks:             ranks,
		ExpectedRanks:     uint32(max(0, e.Worker.ExpectedRanks)),
		OldestReceivedUs:  uint64(e.OldestReceived()),
		FreshnessWindowMs: uint32(e.Window.Milliseconds()),
		Anomalies:         e.Anomalies.Names(),
		LastError:         e.LastError,
		TransportReason:   e.Worker.TransportReason,
	}.Build()
}

func rankProto(r *load.Rank, reason string, received load.Instant) *loadmonitorpb.Rank {
	b := loadmonitorpb.Rank_builder{
		DpRank:                     r.Load.DPRank,
		Freshness:                  loadmonitorpb.Freshness(r.Freshness),
		ReceivedUs:                 uint64(received),
		Reason:                     reason,
		NumRunningReqs:             known(r.Load.Int(load.NumRunningReqs)),
		NumWaitingReqs:             known(r.Load.Int(load.NumWaitingReqs)),
		NumWaitingUncachedTokens:   known(r.Load.Int(load.NumWaitingUncachedTokens)),
		NumUsedTokens:              known(r.Load.Int(load.NumUsedTokens)),
		NumTotalTokens:             known(r.Load.Int(load.NumTotalTokens)),
		MaxTotalNumTokens:          known(r.Load.Int(load.MaxTotalNumTokens)),
		MaxRunningRequests:         known(r.Load.Int(load.MaxRunningRequests)),
		TotalPrefillUncachedTokens: known(r.Load.Int(load.TotalPrefillUncachedTokens)),
		TotalPrefillBusyUs:         known(r.Load.Int(load.TotalPrefillBusyUs)),
		TokenUsage:                 known(r.Load.Float(load.TokenUsage)),
		GenThroughput:              known(r.Load.Float(load.GenThroughput)),
		CacheHitRate:               known(r.Load.Float(load.CacheHitRate)),
		Utilization:                known(r.Load.Float(load.Utilization)),
		PrefillThroughput:          known(r.Load.Float(load.PrefillThroughput)),
	}
	if r.SampleAgeMs >= 0 {
		b.SampleAgeMs = new(int64(r.SampleAgeMs))
	}
	return b.Build()
}

func aggregateProto(a *load.Aggregate) *loadmonitorpb.Aggregate {
	return loadmonitorpb.Aggregate_builder{
		RankCount:                a.RankCount,
		NumRunningReqs:           known(a.Int(load.SumRunningReqs)),
		NumWaitingReqs:           known(a.Int(load.SumWaitingReqs)),
		NumWaitingUncachedTokens: known(a.Int(load.SumWaitingUncachedTokens)),
		NumUsedTokens:            known(a.Int(load.SumUsedTokens)),
		NumTotalTokens:           known(a.Int(load.SumTotalTokens)),
		MaxTotalNumTokens:        known(a.Int(load.SumMaxTotalTokens)),
		MaxRunningRequests:       known(a.Int(load.SumMaxRunningRequests)),
		GenThroughput:            known(a.Float(load.SumGenThroughput)),
		TotalRequests:            known(a.Int(load.TotalRequests)),
		FreeTokens:               known(a.Int(load.FreeTokens)),
		AvailableSlots:           known(a.Int(load.AvailableSlots)),
		QueuePressure:            known(a.Float(load.QueuePressure)),
		RequestUtilization:       known(a.Float(load.RequestUtilization)),
		WeightedTokenUsage:       known(a.Float(load.WeightedTokenUsage)),
		MaxRankTokenUsage:        known(a.Float(load.MaxRankTokenUsage)),
		MaxRankWaitingReqs:       known(a.Int(load.MaxRankWaitingReqs)),
		PrefillRate:              known(a.Float(load.PrefillRate)),
		PrefillQueueMs:           known(a.Float(load.PrefillQueueMs)),
	}.Build()
}

// known returns nil for what was never told (rule VAL1).
func known[T int64 | float64](v T, ok bool) *T {
	if !ok {
		return nil
	}
	return &v
}

func summaryProto(state load.FleetState, s load.Summary) *loadmonitorpb.Summary {
	return loadmonitorpb.Summary_builder{
		State:       loadmonitorpb.FleetState(state),
		Workers:     uint32(s.Workers),
		Fresh:       uint32(s.Fresh),
		Stale:       uint32(s.Stale),
		Missing:     uint32(s.Missing),
		Incomplete:  uint32(s.Incomplete),
		Unreachable: uint32(s.Unreachable),
		Complete:    s.Complete(),
	}.Build()
}
