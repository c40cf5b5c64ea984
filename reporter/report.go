package reporter

import (
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// maxLastError bounds what a report says of a failure, in bytes.
const maxLastError = 512

// unknown is what the contract, which has no optional figures, says for a usage, hit rate or utilisation that is not
// known. Counters, capacities and throughputs have no such value and say 0.
const unknown = -1

// samples remembers the newest sample of the ranks, so that a failed sampling leaves what was known before.
type samples struct {
	mu   sync.Mutex
	last []load.RankLoad
}

// collect samples and returns the newest ranks with why sampling failed, if it did. The result is the caller's.
func (s *samples) collect(sample Sampler, now time.Time) ([]load.RankLoad, error) {
	ranks, err := sample(nil)
	for i := range ranks {
		if ranks[i].SnapshotTimeUnixMs == 0 {
			ranks[i].SnapshotTimeUnixMs = now.UnixMilli()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(ranks) > 0 {
		s.last = append(s.last[:0], ranks...)
	} else {
		ranks = append(ranks, s.last...)
	}
	return ranks, err
}

// newReport makes the next report, of the newest sample, with a sequence of its own.
func (r *Reporter) newReport(worker string) *modelgatewaypb.LoadReport {
	now := time.Now()
	ranks, err := r.samples.collect(r.opts.Sample, now)
	report := &modelgatewaypb.LoadReport{
		SourceInstanceId: r.source,
		SequenceId:       r.sequence.Add(1),
		ReportTimeUnixMs: now.UnixMilli(),
		Worker: &modelgatewaypb.Worker{
			WorkerAddr: worker,
			WorkerType: workerType(r.opts.Role),
			Model:      optional(r.opts.Model),
			Zone:       optional(r.opts.Zone),
		},
		Status: statusOf(ranks, now, r.opts.StaleAfter),
		Ranks:  toProto(ranks),
	}
	if err != nil {
		report.LastError = optional(bounded(err.Error(), maxLastError))
	} else if len(ranks) == 0 {
		report.LastError = optional("no load was sampled yet")
	}
	return report
}

// statusOf judges the samples by this machine's clock alone. A sample from the future is young.
func statusOf(ranks []load.RankLoad, now time.Time, staleAfter time.Duration) modelgatewaypb.ReportStatus {
	if len(ranks) == 0 {
		return modelgatewaypb.ReportStatus_REPORT_STATUS_UNREACHABLE
	}
	for i := range ranks {
		if now.UnixMilli()-ranks[i].SnapshotTimeUnixMs > staleAfter.Milliseconds() {
			return modelgatewaypb.ReportStatus_REPORT_STATUS_STALE
		}
	}
	return modelgatewaypb.ReportStatus_REPORT_STATUS_HEALTHY
}

func toProto(ranks []load.RankLoad) []*modelgatewaypb.RankLoad {
	if len(ranks) == 0 {
		return nil
	}
	rows := make([]modelgatewaypb.RankLoad, len(ranks))
	out := make([]*modelgatewaypb.RankLoad, len(ranks))
	for i := range ranks {
		in, row := &ranks[i], &rows[i]
		row.DpRank = in.DPRank
		row.SnapshotTimeUnixMs = in.SnapshotTimeUnixMs
		row.NumRunningReqs, _ = in.Int(load.NumRunningReqs)
		row.NumWaitingReqs, _ = in.Int(load.NumWaitingReqs)
		row.NumWaitingUncachedTokens, _ = in.Int(load.NumWaitingUncachedTokens)
		row.NumUsedTokens, _ = in.Int(load.NumUsedTokens)
		row.NumTotalTokens, _ = in.Int(load.NumTotalTokens)
		row.MaxTotalNumTokens, _ = in.Int(load.MaxTotalNumTokens)
		row.MaxRunningRequests, _ = in.Int(load.MaxRunningRequests)
		row.TokenUsage = share(in, load.TokenUsage)
		row.GenThroughput, _ = in.Float(load.GenThroughput)
		row.CacheHitRate = share(in, load.CacheHitRate)
		row.Utilization = share(in, load.Utilization)
		row.PrefillThroughput, _ = in.Float(load.PrefillThroughput)
		out[i] = row
	}
	return out
}

func share(r *load.RankLoad, s load.FloatSignal) float64 {
	if v, ok := r.Float(s); ok {
		return v
	}
	return unknown
}

func workerType(role load.Role) modelgatewaypb.WorkerType {
	switch role {
	case load.RoleRegular:
		return modelgatewaypb.WorkerType_WORKER_TYPE_REGULAR
	case load.RolePrefill:
		return modelgatewaypb.WorkerType_WORKER_TYPE_PREFILL
	case load.RoleDecode:
		return modelgatewaypb.WorkerType_WORKER_TYPE_DECODE
	}
	return modelgatewaypb.WorkerType_WORKER_TYPE_UNSPECIFIED
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// bounded returns s as valid UTF-8 of at most n bytes, cut between characters (rule VAL3).
func bounded(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
