package server

import (
	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// Bounds of strings in a report, bytes (rule VAL3). What identifies is refused when it is longer, what is only shown is
// cut.
const (
	maxSourceInstance = 256
	maxModel          = 256
	maxAddress        = 512
	maxLastError      = 512
)

// fromProto fills r from a pushed report; r keeps nothing of m but strings, and r.Ranks is used again. It refuses
// identities that are too long and judges nothing else: negative counters, sequences and ranks pass as they were sent.
func fromProto(m *modelgatewaypb.LoadReport, r *load.Report) error {
	w := m.GetWorker()
	switch {
	case len(m.GetSourceInstanceId()) > maxSourceInstance:
		return tooLong("source_instance_id", len(m.GetSourceInstanceId()), maxSourceInstance, load.ErrSourceInstance)
	case len(w.GetWorkerAddr()) > maxAddress:
		return tooLong("worker_addr", len(w.GetWorkerAddr()), maxAddress, load.ErrUnknownWorker)
	case len(w.GetModel()) > maxModel:
		return tooLong("model", len(w.GetModel()), maxModel, load.ErrModelMismatch)
	}
	r.SourceInstance = m.GetSourceInstanceId()
	r.Sequence = m.GetSequenceId()
	r.ReportTimeUnixMs = m.GetReportTimeUnixMs()
	r.Status = statusFromProto(m.GetStatus())
	r.LastError = bounded(m.GetLastError(), maxLastError)
	r.Claim = load.Claim{
		Address: w.GetWorkerAddr(),
		Role:    roleFromProto(w.GetWorkerType()),
		Model:   w.GetModel(),
	}
	r.Ranks = r.Ranks[:0]
	for _, rank := range m.GetRanks() {
		r.Ranks = append(r.Ranks, load.RankLoad{})
		rankFromProto(rank, &r.Ranks[len(r.Ranks)-1])
	}
	return nil
}

// rankFromProto fills a zero l. The contract has no presence: a counter of 0 is 0, but a capacity of 0 is one that the
// engine does not know yet (rule FR5), and a negative share is unknown (rule VAL2).
func rankFromProto(m *modelgatewaypb.RankLoad, l *load.RankLoad) {
	l.DPRank = m.GetDpRank()
	l.SnapshotTimeUnixMs = m.GetSnapshotTimeUnixMs()

	l.SetInt(load.NumRunningReqs, m.GetNumRunningReqs())
	l.SetInt(load.NumWaitingReqs, m.GetNumWaitingReqs())
	l.SetInt(load.NumWaitingUncachedTokens, m.GetNumWaitingUncachedTokens())
	l.SetInt(load.NumUsedTokens, m.GetNumUsedTokens())
	l.SetInt(load.NumTotalTokens, m.GetNumTotalTokens())
	setCapacity(l, load.MaxTotalNumTokens, m.GetMaxTotalNumTokens())
	setCapacity(l, load.MaxRunningRequests, m.GetMaxRunningRequests())

	setShare(l, load.TokenUsage, m.GetTokenUsage())
	setShare(l, load.CacheHitRate, m.GetCacheHitRate())
	setShare(l, load.Utilization, m.GetUtilization())
	l.SetFloat(load.GenThroughput, m.GetGenThroughput())
	l.SetFloat(load.PrefillThroughput, m.GetPrefillThroughput())
}

func setCapacity(l *load.RankLoad, s load.IntSignal, v int64) {
	if v != 0 {
		l.SetInt(s, v)
	}
}

// setShare leaves a negative share out. NaN and infinities are told, so that they are refused; minus infinity is one.
func setShare(l *load.RankLoad, s load.FloatSignal, v float64) {
	if v < 0 && load.Finite(v) {
		return
	}
	l.SetFloat(s, v)
}

// roleFromProto maps a number that the contract does not know to unspecified, which is refused: no role by default.
func roleFromProto(t modelgatewaypb.WorkerType) load.Role {
	switch t {
	case modelgatewaypb.WorkerType_WORKER_TYPE_REGULAR:
		return load.RoleRegular
	case modelgatewaypb.WorkerType_WORKER_TYPE_PREFILL:
		return load.RolePrefill
	case modelgatewaypb.WorkerType_WORKER_TYPE_DECODE:
		return load.RoleDecode
	}
	return load.RoleUnspecified
}

func statusFromProto(s modelgatewaypb.ReportStatus) load.Status {
	switch s {
	case modelgatewaypb.ReportStatus_REPORT_STATUS_HEALTHY:
		return load.StatusHealthy
	case modelgatewaypb.ReportStatus_REPORT_STATUS_STALE:
		return load.StatusStale
	case modelgatewaypb.ReportStatus_REPORT_STATUS_UNREACHABLE:
		return load.StatusUnreachable
	}
	return load.StatusUnspecified
}
