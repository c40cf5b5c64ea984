package reporter

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/testing/protocmp"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

func TestStream_SequenceIsSharedByTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.start(t)
		r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
		for i, interval := range []time.Duration{300 * time.Millisecond, 700 * time.Millisecond} {
			req := request()
			req.Target = netip.AddrPortFrom(req.Target.Addr(), uint16(50061+i))
			req.ReportInterval = interval
			mustStart(t, r, req)
		}
		after(10 * time.Second)
		seen := map[uint64]bool{}
		for _, a := range m.arrivals() {
			if seen[a.report.SequenceId] {
				t.Errorf("sequence %d was sent twice", a.report.SequenceId)
			}
			seen[a.report.SequenceId] = true
			if a.report.SourceInstanceId != r.SourceInstance() {
				t.Errorf("source instance %q, want %q", a.report.SourceInstanceId, r.SourceInstance())
			}
		}
		for n := range uint64(len(seen)) {
			if !seen[n+1] {
				t.Errorf("sequence %d is missing among both targets", n+1)
			}
		}
		if n := len(m.streams()); n != 2 {
			t.Errorf("%d streams, want 2", n)
		}
	})
}

func TestStream_ReportCarriesIdentityAndFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.start(t)
		sampled := time.Now().Add(-500 * time.Millisecond)
		r := run(t, Options{
			Role: load.RolePrefill, Model: "m1", Zone: "z1", DialOptions: []grpc.DialOption{m.dial()},
			Sample: func(dst []load.RankLoad) ([]load.RankLoad, error) {
				full := load.RankLoad{DPRank: 4, SnapshotTimeUnixMs: sampled.UnixMilli()}
				for s := range load.NumIntSignals {
					full.SetInt(s, int64(s)+1)
				}
				full.SetFloat(load.TokenUsage, 0.5)
				full.SetFloat(load.GenThroughput, 900)
				full.SetFloat(load.CacheHitRate, 0.25)
				full.SetFloat(load.Utilization, 0.75)
				full.SetFloat(load.PrefillThroughput, 1200)
				return append(dst, full, load.RankLoad{DPRank: 6}), nil // rank 6: nothing told, sampled now
			},
		})
		req := request()
		req.WorkerAddr = "HTTP://[2001:DB8:0::5]:30000/"
		now := time.Now()
		mustStart(t, r, req)
		synctest.Wait()
		model, zone := "m1", "z1"
		want := &modelgatewaypb.LoadReport{
			SourceInstanceId: r.SourceInstance(), SequenceId: 1, ReportTimeUnixMs: now.UnixMilli(),
			Worker: &modelgatewaypb.Worker{
				WorkerAddr: "http://[2001:db8::5]:30000", WorkerType: modelgatewaypb.WorkerType_WORKER_TYPE_PREFILL, Model: &model, Zone: &zone,
			},
			Status: modelgatewaypb.ReportStatus_REPORT_STATUS_HEALTHY,
			Ranks: []*modelgatewaypb.RankLoad{
				{
					DpRank: 4, SnapshotTimeUnixMs: sampled.UnixMilli(), NumRunningReqs: 1, NumWaitingReqs: 2, NumWaitingUncachedTokens: 3,
					NumUsedTokens: 4, NumTotalTokens: 5, MaxTotalNumTokens: 6, MaxRunningRequests: 7, TokenUsage: 0.5, GenThroughput: 900,
					CacheHitRate: 0.25, Utilization: 0.75, PrefillThroughput: 1200,
				},
				{DpRank: 6, SnapshotTimeUnixMs: now.UnixMilli(), TokenUsage: -1, CacheHitRate: -1, Utilization: -1},
			},
		}
		if diff := cmp.Diff(want, m.last(t), protocmp.Transform()); diff != "" {
			t.Errorf("report (-want +got):\n%s", diff)
		}
	})
}

func TestStream_StatusFollowsTheSamplesOfTheEnginesOwnClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.start(t)
		type answer struct {
			ranks []load.RankLoad
			err   error
		}
		var now atomic.Pointer[answer]
		now.Store(&answer{})
		r := run(t, Options{DialOptions: []grpc.DialOption{m.dial()}, Sample: func(dst []load.RankLoad) ([]load.RankLoad, error) {
			a := now.Load()
			return append(dst, a.ranks...), a.err
		}})
		req := request()
		req.LeaseTTL = time.Hour
		mustStart(t, r, req)
		step := func(name string, a answer, status modelgatewaypb.ReportStatus, ranks int, lastError string) {
			t.Helper()
			now.Store(&a)
			after(time.Second)
			got := m.last(t)
			if got.Status != status || len(got.Ranks) != ranks || got.GetLastError() != lastError {
				t.Errorf("%s: status %v, %d ranks, last error %q; want %v, %d, %q", name, got.Status, len(got.Ranks), got.GetLastError(), status, ranks, lastError)
			}
		}
		sampled := func(ages ...time.Duration) (ranks []load.RankLoad) {
			for i, age := range ages {
				ranks = append(ranks, load.RankLoad{DPRank: int32(i), SnapshotTimeUnixMs: time.Now().Add(time.Second - age).UnixMilli()})
			}
			return ranks
		}
		const (
			healthy     = modelgatewaypb.ReportStatus_REPORT_STATUS_HEALTHY
			stale       = modelgatewaypb.ReportStatus_REPORT_STATUS_STALE
			unreachable = modelgatewaypb.ReportStatus_REPORT_STATUS_UNREACHABLE
		)
		step("never sampled", answer{}, unreachable, 0, "no load was sampled yet")
		step("sampling fails from the start", answer{err: errSampling}, unreachable, 0, errSampling.Error())
		step("young", answer{ranks: sampled(0, 3*time.Second)}, healthy, 2, "")
		step("one too old", answer{ranks: sampled(0, 3*time.Second+time.Millisecond)}, stale, 2, "")
		step("from the future", answer{ranks: sampled(-time.Hour)}, healthy, 1, "")
		step("young, with an error", answer{ranks: sampled(0), err: errSampling}, healthy, 1, errSampling.Error())
		step("sampling fails later", answer{err: errSampling}, healthy, 1, errSampling.Error())
		after(3 * time.Second)
		step("and stays failed", answer{err: errSampling}, stale, 1, errSampling.Error())
		step("heals", answer{ranks: sampled(0, 0)}, healthy, 2, "")
	})
}

func TestBounded_CutsBetweenCharactersAndIsAlwaysUTF8(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"abc", "abc"},
		{"abcdef", "abcd"},
		{"abcé", "abc"},       // 5 bytes: é does not fit whole
		{"a\xffb", "a\uFFFD"}, // the replacement has three bytes
	} {
		if got := bounded(tc.in, 4); got != tc.want {
			t.Errorf("bounded(%q) = %q, want %q", tc.in, got, tc.want)
		}
	}
}
