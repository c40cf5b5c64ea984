package server

import (
	"errors"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

func TestFromProto_KeepsWhatWasTold(t *testing.T) {
	m := sane("src", 7, &modelgatewaypb.RankLoad{
		DpRank: 3, SnapshotTimeUnixMs: 11, NumRunningReqs: 1, NumWaitingReqs: 2, NumWaitingUncachedTokens: 3, NumUsedTokens: 4,
		NumTotalTokens: 5, MaxTotalNumTokens: 6, MaxRunningRequests: 7, TokenUsage: 0.5, GenThroughput: 8, CacheHitRate: 0.25,
		Utilization: 0.75, PrefillThroughput: 9,
	})
	m.LastError = new("why")
	var r load.Report
	if err := fromProto(m, &r); err != nil {
		t.Fatal(err)
	}
	if r.SourceInstance != "src" || r.Sequence != 7 || r.ReportTimeUnixMs != 1_700_000_000_000 || r.Status != load.StatusHealthy || r.LastError != "why" {
		t.Errorf("report is %+v", r)
	}
	if want := (load.Claim{Address: "http://127.0.0.5:30000", Role: load.RoleDecode, Model: "m1"}); r.Claim != want {
		t.Errorf("claim is %+v, want %+v", r.Claim, want)
	}
	want := load.RankLoad{DPRank: 3, SnapshotTimeUnixMs: 11}
	for s, v := range map[load.IntSignal]int64{
		load.NumRunningReqs: 1, load.NumWaitingReqs: 2, load.NumWaitingUncachedTokens: 3, load.NumUsedTokens: 4,
		load.NumTotalTokens: 5, load.MaxTotalNumTokens: 6, load.MaxRunningRequests: 7,
	} {
		want.SetInt(s, v)
	}
	for s, v := range map[load.FloatSignal]float64{
		load.TokenUsage: 0.5, load.GenThroughput: 8, load.CacheHitRate: 0.25, load.Utilization: 0.75, load.PrefillThroughput: 9,
	} {
		want.SetFloat(s, v)
	}
	if len(r.Ranks) != 1 || r.Ranks[0] != want {
		t.Errorf("ranks are %+v, want %+v", r.Ranks, want)
	}
}

// Rules FR5, VAL1 and VAL2: what the contract's zero or negative means.
func TestFromProto_TellsUnknownFromZero(t *testing.T) {
	intCases := []struct {
		name   string
		rank   *modelgatewaypb.RankLoad
		signal load.IntSignal
		want   int64
		known  bool
	}{
		{"running 0 is idle", &modelgatewaypb.RankLoad{}, load.NumRunningReqs, 0, true},
		{"running below 0 passes", &modelgatewaypb.RankLoad{NumRunningReqs: -1}, load.NumRunningReqs, -1, true},
		{"capacity 0 is not told", &modelgatewaypb.RankLoad{}, load.MaxTotalNumTokens, 0, false},
		{"capacity below 0 passes", &modelgatewaypb.RankLoad{MaxTotalNumTokens: -5}, load.MaxTotalNumTokens, -5, true},
		{"max running 0 is not told", &modelgatewaypb.RankLoad{}, load.MaxRunningRequests, 0, false},
		{"prefill tokens do not exist", &modelgatewaypb.RankLoad{}, load.TotalPrefillUncachedTokens, 0, false},
		{"prefill time does not exist", &modelgatewaypb.RankLoad{}, load.TotalPrefillBusyUs, 0, false},
	}
	for _, c := range intCases {
		t.Run(c.name, func(t *testing.T) {
			var l load.RankLoad
			rankFromProto(c.rank, &l)
			if v, ok := l.Int(c.signal); v != c.want || ok != c.known {
				t.Errorf("%s is %d, %v; want %d, %v", c.signal, v, ok, c.want, c.known)
			}
		})
	}
	floatCases := []struct {
		name   string
		rank   *modelgatewaypb.RankLoad
		signal load.FloatSignal
		want   float64
		known  bool
	}{
		{"usage 0 is 0", &modelgatewaypb.RankLoad{}, load.TokenUsage, 0, true},
		{"usage below 0 is unknown", &modelgatewaypb.RankLoad{TokenUsage: -1}, load.TokenUsage, 0, false},
		{"hit rate below 0 is unknown", &modelgatewaypb.RankLoad{CacheHitRate: -0.1}, load.CacheHitRate, 0, false},
		{"utilization below 0 is unknown", &modelgatewaypb.RankLoad{Utilization: -1}, load.Utilization, 0, false},
		{"minus infinity passes", &modelgatewaypb.RankLoad{Utilization: math.Inf(-1)}, load.Utilization, math.Inf(-1), true},
		{"throughput below 0 passes", &modelgatewaypb.RankLoad{GenThroughput: -2}, load.GenThroughput, -2, true},
		{"prefill throughput 0 passes", &modelgatewaypb.RankLoad{}, load.PrefillThroughput, 0, true},
	}
	for _, c := range floatCases {
		t.Run(c.name, func(t *testing.T) {
			var l load.RankLoad
			rankFromProto(c.rank, &l)
			if v, ok := l.Float(c.signal); v != c.want || ok != c.known {
				t.Errorf("%s is %v, %v; want %v, %v", c.signal, v, ok, c.want, c.known)
			}
		})
	}
}

// Case A4 (2): an absent or unknown type is never filed under a default role.
func TestFromProto_UnknownEnumsAreUnspecified(t *testing.T) {
	for _, n := range []int32{0, 4, 77, -1, math.MaxInt32} {
		if got := roleFromProto(modelgatewaypb.WorkerType(n)); got != load.RoleUnspecified {
			t.Errorf("worker type %d is %v", n, got)
		}
		if got := statusFromProto(modelgatewaypb.ReportStatus(n)); got != load.StatusUnspecified {
			t.Errorf("status %d is %v", n, got)
		}
	}
}

// Case H6 and rule VAL3: what identifies is refused when it is too long, what is shown is cut.
func TestFromProto_BoundsStrings(t *testing.T) {
	long := func(n int) *string { return new(strings.Repeat("x", n)) }
	cases := []struct {
		name string
		edit func(*modelgatewaypb.LoadReport)
		want error
	}{
		{"source instance at the bound", func(m *modelgatewaypb.LoadReport) { m.SourceInstanceId = *long(256) }, nil},
		{"source instance too long", func(m *modelgatewaypb.LoadReport) { m.SourceInstanceId = *long(257) }, load.ErrSourceInstance},
		{"model too long", func(m *modelgatewaypb.LoadReport) { m.Worker.Model = long(64 << 10) }, load.ErrModelMismatch},
		{"address too long", func(m *modelgatewaypb.LoadReport) { m.Worker.WorkerAddr = *long(513) }, load.ErrUnknownWorker},
		{"no worker", func(m *modelgatewaypb.LoadReport) { m.Worker = nil }, nil},
		{"last error is cut", func(m *modelgatewaypb.LoadReport) { m.LastError = new(strings.Repeat("é", 4000)) }, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m, r := sane("src", 1), load.Report{}
			c.edit(m)
			if err := fromProto(m, &r); !errors.Is(err, c.want) {
				t.Fatalf("error is %v, want %v", err, c.want)
			}
			if len(r.LastError) > 512 || !utf8.ValidString(r.LastError) {
				t.Errorf("last error has %d bytes, valid %v", len(r.LastError), utf8.ValidString(r.LastError))
			}
		})
	}
}

func TestFromProto_UsesRanksAgain(t *testing.T) {
	var r load.Report
	if err := fromProto(sane("src", 1, rank(0), rank(1), rank(2)), &r); err != nil {
		t.Fatal(err)
	}
	small := sane("src", 2, &modelgatewaypb.RankLoad{DpRank: 5})
	if err := fromProto(small, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Ranks) != 1 || r.Ranks[0].DPRank != 5 {
		t.Fatalf("ranks are %+v", r.Ranks)
	}
	if v, ok := r.Ranks[0].Int(load.MaxTotalNumTokens); ok {
		t.Errorf("capacity %d of the report before is still there", v)
	}
	if n := testing.AllocsPerRun(100, func() { _ = fromProto(small, &r) }); n > 0 {
		t.Errorf("conversion allocates %v times", n)
	}
}

func TestBounded_CutsBetweenCharacters(t *testing.T) {
	cases := []struct {
		name, in string
		limit    int
		want     string
	}{
		{"short", "abc", 4, "abc"},
		{"exact", "abcd", 4, "abcd"},
		{"ascii", "abcdef", 4, "abcd"},
		{"two bytes on the cut", "abcé", 4, "abc"},
		{"four bytes on the cut", "a😀", 4, "a"},
		{"whole character before the cut", "aéb", 3, "aé"},
		{"not valid", "a\xffb", 4, "ab"},
		{"not valid and long", "\xff\xff\xffabc", 4, "a"},
		{"empty", "", 4, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := bounded(c.in, c.limit); got != c.want {
				t.Errorf("bounded(%q, %d) is %q, want %q", c.in, c.limit, got, c.want)
			}
		})
	}
}
