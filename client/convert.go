package client

import (
	"math"
	"time"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// Words that this client does not know, because the monitor is newer, become the unspecified ones: an unknown freshness is
// not fresh.

func roleToProto(r load.Role) loadmonitorpb.Role {
	switch r {
	case load.RoleRegular:
		return loadmonitorpb.Role_ROLE_REGULAR
	case load.RolePrefill:
		return loadmonitorpb.Role_ROLE_PREFILL
	case load.RoleDecode:
		return loadmonitorpb.Role_ROLE_DECODE
	}
	return loadmonitorpb.Role_ROLE_UNSPECIFIED
}

func roleFromProto(r loadmonitorpb.Role) load.Role {
	switch r {
	case loadmonitorpb.Role_ROLE_REGULAR:
		return load.RoleRegular
	case loadmonitorpb.Role_ROLE_PREFILL:
		return load.RolePrefill
	case loadmonitorpb.Role_ROLE_DECODE:
		return load.RoleDecode
	}
	return load.RoleUnspecified
}

func transportFromProto(t loadmonitorpb.Transport) load.Transport {
	switch t {
	case loadmonitorpb.Transport_TRANSPORT_PUSH:
		return load.TransportPush
	case loadmonitorpb.Transport_TRANSPORT_ZMQ:
		return load.TransportZMQ
	case loadmonitorpb.Transport_TRANSPORT_DIAL:
		return load.TransportDial
	case loadmonitorpb.Transport_TRANSPORT_POLL:
		return load.TransportPoll
	}
	return load.TransportUnspecified
}

func freshnessFromProto(f loadmonitorpb.Freshness) load.Freshness {
	switch f {
	case loadmonitorpb.Freshness_FRESHNESS_FRESH:
		return load.Fresh
	case loadmonitorpb.Freshness_FRESHNESS_STALE:
		return load.Stale
	case loadmonitorpb.Freshness_FRESHNESS_MISSING:
		return load.Missing
	case loadmonitorpb.Freshness_FRESHNESS_INCOMPLETE:
		return load.Incomplete
	case loadmonitorpb.Freshness_FRESHNESS_UNREACHABLE:
		return load.Unreachable
	}
	return load.FreshnessUnspecified
}

func stateFromProto(s loadmonitorpb.FleetState) load.FleetState {
	switch s {
	case loadmonitorpb.FleetState_FLEET_STATE_WARMING_UP:
		return load.FleetWarmingUp
	case loadmonitorpb.FleetState_FLEET_STATE_READY:
		return load.FleetReady
	case loadmonitorpb.FleetState_FLEET_STATE_NO_WORKERS:
		return load.FleetNoWorkers
	}
	return load.FleetStateUnspecified
}

func summaryFromProto(s *loadmonitorpb.Summary) load.Summary {
	return load.Summary{
		Workers:     int(s.GetWorkers()),
		Fresh:       int(s.GetFresh()),
		Stale:       int(s.GetStale()),
		Missing:     int(s.GetMissing()),
		Incomplete:  int(s.GetIncomplete()),
		Unreachable: int(s.GetUnreachable()),
	}
}

func instantFromProto(us uint64) load.Instant { return load.Instant(min(us, maxInstant)) }

func statusFromProto(w *loadmonitorpb.Worker) *Status {
	s := &Status{
		Handle:          w.GetHandle(),
		ID:              w.GetId(),
		URL:             w.GetUrl(),
		Role:            roleFromProto(w.GetRole()),
		Models:          w.GetModels(),
		Zone:            w.GetZone(),
		Transport:       transportFromProto(w.GetTransport()),
		TransportReason: w.GetTransportReason(),
		Freshness:       freshnessFromProto(w.GetFreshness()),
		Reason:          w.GetReason(),
		SourceInstance:  w.GetSourceInstance(),
		Sequence:        w.GetSequence(),
		Restarts:        w.GetRestarts(),
		ExpectedRanks:   int(w.GetExpectedRanks()),
		Window:          time.Duration(w.GetFreshnessWindowMs()) * time.Millisecond,
		Anomalies:       w.GetAnomalies(),
		LastError:       w.GetLastError(),
		oldest:          instantFromProto(w.GetOldestReceivedUs()),
	}
	aggregateFromProto(&s.Aggregate, w.GetAggregate())
	if ranks := w.GetRanks(); len(ranks) > 0 {
		s.Ranks = make([]Rank, len(ranks))
		for i, r := range ranks {
			rankFromProto(&s.Ranks[i], r)
		}
	}
	return s
}

func rankFromProto(r *Rank, p *loadmonitorpb.Rank) {
	r.Freshness = freshnessFromProto(p.GetFreshness())
	r.Reason = p.GetReason()
	r.received = instantFromProto(p.GetReceivedUs())
	r.sampleAge = -1
	if p.HasSampleAgeMs() {
		const most = int64(math.MaxInt64 / time.Millisecond)
		r.sampleAge = time.Duration(min(max(0, p.GetSampleAgeMs()), most)) * time.Millisecond
	}

	l := &r.Load
	l.DPRank = p.GetDpRank()
	if p.HasNumRunningReqs() {
		l.SetInt(load.NumRunningReqs, p.GetNumRunningReqs())
	}
	if p.HasNumWaitingReqs() {
		l.SetInt(load.NumWaitingReqs, p.GetNumWaitingReqs())
	}
	if p.HasNumWaitingUncachedTokens() {
		l.SetInt(load.NumWaitingUncachedTokens, p.GetNumWaitingUncachedTokens())
	}
	if p.HasNumUsedTokens() {
		l.SetInt(load.NumUsedTokens, p.GetNumUsedTokens())
	}
	if p.HasNumTotalTokens() {
		l.SetInt(load.NumTotalTokens, p.GetNumTotalTokens())
	}
	if p.HasMaxTotalNumTokens() {
		l.SetInt(load.MaxTotalNumTokens, p.GetMaxTotalNumTokens())
	}
	if p.HasMaxRunningRequests() {
		l.SetInt(load.MaxRunningRequests, p.GetMaxRunningRequests())
	}
	if p.HasTotalPrefillUncachedTokens() {
		l.SetInt(load.TotalPrefillUncachedTokens, p.GetTotalPrefillUncachedTokens())
	}
	if p.HasTotalPrefillBusyUs() {
		l.SetInt(load.TotalPrefillBusyUs, p.GetTotalPrefillBusyUs())
	}
	if p.HasTokenUsage() {
		l.SetFloat(load.TokenUsage, p.GetTokenUsage())
	}
	if p.HasGenThroughput() {
		l.SetFloat(load.GenThroughput, p.GetGenThroughput())
	}
	if p.HasCacheHitRate() {
		l.SetFloat(load.CacheHitRate, p.GetCacheHitRate())
	}
	if p.HasUtilization() {
		l.SetFloat(load.Utilization, p.GetUtilization())
	}
	if p.HasPrefillThroughput() {
		l.SetFloat(load.PrefillThroughput, p.GetPrefillThroughput())
	}
}

func aggregateFromProto(a *load.Aggregate, p *loadmonitorpb.Aggregate) {
	if p == nil {
		return
	}
	a.RankCount = p.GetRankCount()
	if p.HasNumRunningReqs() {
		a.SetInt(load.SumRunningReqs, p.GetNumRunningReqs())
	}
	if p.HasNumWaitingReqs() {
		a.SetInt(load.SumWaitingReqs, p.GetNumWaitingReqs())
	}
	if p.HasNumWaitingUncachedTokens() {
		a.SetInt(load.SumWaitingUncachedTokens, p.GetNumWaitingUncachedTokens())
	}
	if p.HasNumUsedTokens() {
		a.SetInt(load.SumUsedTokens, p.GetNumUsedTokens())
	}
	if p.HasNumTotalTokens() {
		a.SetInt(load.SumTotalTokens, p.GetNumTotalTokens())
	}
	if p.HasMaxTotalNumTokens() {
		a.SetInt(load.SumMaxTotalTokens, p.GetMaxTotalNumTokens())
	}
	if p.HasMaxRunningRequests() {
		a.SetInt(load.SumMaxRunningRequests, p.GetMaxRunningRequests())
	}
	if p.HasTotalRequests() {
		a.SetInt(load.TotalRequests, p.GetTotalRequests())
	}
	if p.HasFreeTokens() {
		a.SetInt(load.FreeTokens, p.GetFreeTokens())
	}
	if p.HasAvailableSlots() {
		a.SetInt(load.AvailableSlots, p.GetAvailableSlots())
	}
	if p.HasMaxRankWaitingReqs() {
		a.SetInt(load.MaxRankWaitingReqs, p.GetMaxRankWaitingReqs())
	}
	if p.HasGenThroughput() {
		a.SetFloat(load.SumGenThroughput, p.GetGenThroughput())
	}
	if p.HasQueuePressure() {
		a.SetFloat(load.QueuePressure, p.GetQueuePressure())
	}
	if p.HasRequestUtilization() {
		a.SetFloat(load.RequestUtilization, p.GetRequestUtilization())
	}
	if p.HasWeightedTokenUsage() {
		a.SetFloat(load.WeightedTokenUsage, p.GetWeightedTokenUsage())
	}
	if p.HasMaxRankTokenUsage() {
		a.SetFloat(load.MaxRankTokenUsage, p.GetMaxRankTokenUsage())
	}
	if p.HasPrefillRate() {
		a.SetFloat(load.PrefillRate, p.GetPrefillRate())
	}
	if p.HasPrefillQueueMs() {
		a.SetFloat(load.PrefillQueueMs, p.GetPrefillQueueMs())
	}
}
