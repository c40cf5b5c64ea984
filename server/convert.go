package server

import (
	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

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
