package validator

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

var limits = Limits{MaxRanks: 1024, MaxDPRank: 65535}

// rank returns a sane rank, changed by edit.
func rank(n int32, edit ...func(*load.RankLoad)) load.RankLoad {
	r := load.RankLoad{DPRank: n}
	r.SetInt(load.NumRunningReqs, 1)
	r.SetInt(load.NumWaitingReqs, 0)
	r.SetInt(load.NumUsedTokens, 100)
	r.SetInt(load.MaxTotalNumTokens, 1000)
	r.SetInt(load.MaxRunningRequests, 64)
	for _, e := range edit {
		e(&r)
	}
	return r
}

func report(ranks ...load.RankLoad) *load.Report {
	return &load.Report{SourceInstance: "srcA", Sequence: 1, Status: load.StatusHealthy, Ranks: ranks}
}

func setInt(s load.IntSignal, v int64) func(*load.RankLoad) {
	return func(r *load.RankLoad) { r.SetInt(s, v) }
}

func setFloat(s load.FloatSignal, v float64) func(*load.RankLoad) {
	return func(r *load.RankLoad) { r.SetFloat(s, v) }
}

// Rules VAL2, SEQ1 and LIFE2; cases D1, E3, E5 and B5.
func TestShape(t *testing.T) {
	many := make([]load.RankLoad, 100_000)
	for i := range many {
		many[i] = rank(int32(i))
	}
	sequence := func(seq uint64) *load.Report { r := report(rank(0)); r.Sequence = seq; return r }
	status := func(s load.Status, ranks ...load.RankLoad) *load.Report {
		r := report(ranks...)
		r.Status = s
		return r
	}
	source := func(id string) *load.Report { r := report(rank(0)); r.SourceInstance = id; return r }

	for _, c := range []struct {
		name string
		r    *load.Report
		want error
	}{
		{"sane", report(rank(0)), nil},
		{"ranks need not start at 0 (E3)", report(rank(4), rank(5), rank(6), rank(7)), nil},
		{"ranks may have holes (E3)", report(rank(0), rank(2), rank(5)), nil},
		{"order does not matter", report(rank(2), rank(0), rank(1)), nil},
		{"no rank (E5)", report(), load.ErrNoRanks},
		{"unreachable has no rank", status(load.StatusUnreachable), nil},
		{"stale with ranks", status(load.StatusStale, rank(0)), nil},
		{"status unspecified", status(load.StatusUnspecified, rank(0)), load.ErrStatus},
		{"rank -1 (E5)", report(rank(-1)), load.ErrRankRange},
		{"rank 2147483647 (E5)", report(rank(math.MaxInt32)), load.ErrRankRange},
		{"highest rank", report(rank(65535)), nil},
		{"rank twice (E5)", report(rank(0), rank(0)), load.ErrDuplicateRank},
		{"rank twice out of order", report(rank(3), rank(1), rank(2), rank(3)), load.ErrDuplicateRank},
		{"100,000 ranks (E5)", report(many...), load.ErrTooManyRanks},
		{"1,024 ranks", report(many[:1024]...), nil},
		{"negative running (D1)", report(rank(0, setInt(load.NumRunningReqs, -1))), load.ErrNegative},
		{"negative tokens (D1)", report(rank(0), rank(1, setInt(load.NumUsedTokens, -5))), load.ErrNegative},
		{"negative throughput", report(rank(0, setFloat(load.GenThroughput, -1))), load.ErrNegative},
		{"negative utilization means unknown", report(rank(0, setFloat(load.Utilization, -1))), nil},
		{"NaN", report(rank(0, setFloat(load.TokenUsage, math.NaN()))), load.ErrNotFinite},
		{"infinite", report(rank(0, setFloat(load.GenThroughput, math.Inf(1)))), load.ErrNotFinite},
		{"negative infinite share", report(rank(0, setFloat(load.CacheHitRate, math.Inf(-1)))), load.ErrNotFinite},
		{"over capacity is real life (D7)", report(rank(0, setInt(load.NumRunningReqs, 300))), nil},
		{"total above capacity (D2)", report(rank(0, setInt(load.NumTotalTokens, 5000))), nil},
		{"sequence 0 (B5)", sequence(0), load.ErrSequenceRange},
		{"sequence 2^63-1", sequence(math.MaxInt64), nil},
		{"sequence 2^63 (B5)", sequence(1 << 63), load.ErrSequenceRange},
		{"sequence 2^64-1 (B5)", sequence(math.MaxUint64), load.ErrSequenceRange},
		{"no source instance", source(""), load.ErrSourceInstance},
		{"long source instance", source(string(make([]byte, 257))), load.ErrSourceInstance},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := Shape(c.r, limits); !errors.Is(err, c.want) {
				t.Errorf("Shape = %v, want %v", err, c.want)
			}
		})
	}
}

func TestSequence_SEQ1(t *testing.T) {
	for _, c := range []struct {
		name      string
		last, seq uint64
		want      error
	}{
		{"first", 0, 7, nil},
		{"first may be large: the engine has long been running", 0, 1 << 48, nil},
		{"a wild first one does not lock its source out (B5)", 0, math.MaxInt64, load.ErrSequenceJump},
		{"next", 7, 8, nil},
		{"holes mean nothing (B3)", 2, 500, nil},
		{"equal is old", 7, 7, load.ErrSequenceOld},
		{"lower is old", 7, 6, load.ErrSequenceOld},
		{"jump of 2^32", 7, 7 + 1<<32, nil},
		{"jump above 2^32", 7, 8 + 1<<32, load.ErrSequenceJump},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := Sequence(c.last, c.seq); !errors.Is(err, c.want) {
				t.Errorf("Sequence(%d, %d) = %v, want %v", c.last, c.seq, err, c.want)
			}
		})
	}
}

func TestIdentity_ID2(t *testing.T) {
	decode := load.Worker{ID: "w", Role: load.RoleDecode, Models: []string{"m1", "m1-lora"}}
	unnamed := load.Worker{ID: "w", Role: load.RoleDecode}
	for _, c := range []struct {
		name  string
		w     load.Worker
		claim load.Claim
		want  error
	}{
		{"same", decode, load.Claim{Role: load.RoleDecode, Model: "m1"}, nil},
		{"any of the models", decode, load.Claim{Role: load.RoleDecode, Model: "m1-lora"}, nil},
		{"report names no model", decode, load.Claim{Role: load.RoleDecode}, nil},
		{"registration names no model", unnamed, load.Claim{Role: load.RoleDecode, Model: "m9"}, nil},
		{"other model (A3)", decode, load.Claim{Role: load.RoleDecode, Model: "m2"}, load.ErrModelMismatch},
		{"other role (A4)", decode, load.Claim{Role: load.RolePrefill}, load.ErrRoleMismatch},
		{"no role (A4)", decode, load.Claim{}, load.ErrRoleMismatch},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := Identity(&c.w, &c.claim); !errors.Is(err, c.want) {
				t.Errorf("Identity = %v, want %v", err, c.want)
			}
		})
	}
}

// Rules FR5 and VAL1; case D5.
func TestNormalise_UnknownIsNotZero(t *testing.T) {
	r := rank(0, setFloat(load.TokenUsage, -1), setFloat(load.Utilization, -1), setFloat(load.CacheHitRate, 0),
		setInt(load.MaxTotalNumTokens, 0), setFloat(load.PrefillThroughput, 0))
	if Normalise(&r, false) {
		t.Error("prefill throughput of 0 counts as seen")
	}
	for _, s := range []load.FloatSignal{load.TokenUsage, load.Utilization, load.PrefillThroughput} {
		if v, ok := r.Float(s); ok {
			t.Errorf("%s = %v, want unknown", s, v)
		}
	}
	if v, ok := r.Float(load.CacheHitRate); !ok || v != 0 {
		t.Errorf("cache_hit_rate = %v %v, want a known 0", v, ok)
	}
	if !Starting(&r) {
		t.Error("a rank without capacity is not starting")
	}
	r = rank(0, setFloat(load.PrefillThroughput, 900))
	if !Normalise(&r, false) || Starting(&r) {
		t.Error("a rank with capacity and prefill throughput: want seen and not starting")
	}
	r = rank(0, setFloat(load.PrefillThroughput, 0))
	Normalise(&r, true)
	if v, ok := r.Float(load.PrefillThroughput); !ok || v != 0 {
		t.Errorf("prefill_throughput after one above 0 = %v %v, want a known 0", v, ok)
	}
	r = rank(0, setInt(load.MaxRunningRequests, 0))
	Normalise(&r, false)
	if !Starting(&r) {
		t.Error("a rank without a concurrency limit is not starting")
	}
}

func TestSampleAge_FR1(t *testing.T) {
	for _, c := range []struct {
		name             string
		report, snapshot int64
		want             int32
	}{
		{"young", 5000, 4900, 100},
		{"engine's clock went back between the two", 5000, 6000, 0},
		{"ages ago", math.MaxInt64, 1, math.MaxInt32},
		{"no sample time", 5000, 0, -1},
		{"no report time", 0, 5000, -1},
		{"negative time", -5, 5000, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := SampleAgeMs(c.report, c.snapshot); got != c.want {
				t.Errorf("SampleAgeMs = %d, want %d", got, c.want)
			}
		})
	}
}

func TestSampleStale_TheEngineDoesNotSayWhichRank(t *testing.T) {
	for _, c := range []struct {
		name   string
		status load.Status
		ages   []int32
		want   []bool
	}{
		{"healthy and young", load.StatusHealthy, []int32{100, -1}, []bool{false, false}},
		{"healthy with an old sample", load.StatusHealthy, []int32{100, 3001}, []bool{false, true}},
		{"stale with an old sample", load.StatusStale, []int32{100, 3001}, []bool{false, true}},
		{"stale with none that is old for us", load.StatusStale, []int32{100, 2000}, []bool{true, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := make([]bool, len(c.ages))
			SampleStale(c.status, c.ages, 3*time.Second, got)
			if !slices.Equal(got, c.want) {
				t.Errorf("SampleStale = %v, want %v", got, c.want)
			}
		})
	}
}

func TestRankFreshness(t *testing.T) {
	const window = 3 * time.Second
	at := func(received load.Instant) RankState { return RankState{Received: received} }
	for _, c := range []struct {
		name string
		s    RankState
		now  load.Instant
		want load.Freshness
	}{
		{"never", RankState{}, 10, load.Missing},
		{"just now", at(10), 10, load.Fresh},
		{"one microsecond before the deadline", at(10), 3_000_009, load.Fresh},
		{"at the deadline (FR4)", at(10), 3_000_010, load.Stale},
		{"old sample (FR1)", RankState{Received: 10, SampleStale: true}, 10, load.Stale},
		{"no capacity (FR5)", RankState{Received: 10, Starting: true}, 10, load.Stale},
		{"engine unreachable (FR2)", RankState{Received: 10, Unreachable: true}, 10, load.Stale},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, reason := RankFreshness(c.s, c.now, window)
			if got != c.want || (reason == "") != (got == load.Fresh) {
				t.Errorf("RankFreshness = %v %q, want %v and a reason unless fresh", got, reason, c.want)
			}
		})
	}
}

// Rules FR2 and FR3; cases C5, E2 and E4.
func TestWorkerFreshness_InOrder(t *testing.T) {
	set := func(fs ...load.Freshness) []load.Rank {
		ranks := make([]load.Rank, len(fs))
		for i, f := range fs {
			ranks[i] = load.Rank{Load: load.RankLoad{DPRank: int32(i)}, Freshness: f}
		}
		return ranks
	}
	for _, c := range []struct {
		name        string
		expected    int
		ranks       []load.Rank
		unreachable bool
		want        load.Freshness
		reason      string
	}{
		{"all fresh", 2, set(load.Fresh, load.Fresh), false, load.Fresh, ""},
		{"count not known", 0, set(load.Fresh, load.Fresh), false, load.Fresh, ""},
		{"nothing reported", 2, nil, false, load.Missing, "never reported"},
		{"nothing reported, count not known", 0, nil, false, load.Missing, "never reported"},
		{"some expected rank never reported", 4, set(load.Missing, load.Missing, load.Fresh, load.Missing), false, load.Incomplete, "1 ranks reported, 4 expected"},
		{"fewer than expected", 4, set(load.Fresh), false, load.Incomplete, "1 ranks reported, 4 expected"},
		{"more than expected", 1, set(load.Fresh, load.Fresh), false, load.Incomplete, "2 ranks reported, 1 expected"},
		{"one stale", 2, set(load.Fresh, load.Stale), false, load.Stale, "1 of 2 ranks stale: why"},
		{"all stale", 2, set(load.Stale, load.Stale), false, load.Stale, "why"},
		{"incomplete before stale", 3, set(load.Stale, load.Stale), false, load.Incomplete, "2 ranks reported, 3 expected"},
		{"unreachable before all", 3, nil, true, load.Unreachable, "the engine cannot be sampled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			why := slices.Repeat([]string{"why"}, len(c.ranks))
			got, reason := WorkerFreshness(c.expected, c.ranks, why, c.unreachable)
			if got != c.want || reason != c.reason {
				t.Errorf("WorkerFreshness = %v %q, want %v %q", got, reason, c.want, c.reason)
			}
		})
	}
}

func FuzzShape(f *testing.F) {
	f.Add(int32(0), int64(1), 0.5, uint64(1), uint8(1), int32(0))
	f.Add(int32(-1), int64(-1), math.NaN(), uint64(0), uint8(0), int32(5))
	f.Fuzz(func(t *testing.T, n int32, v int64, share float64, seq uint64, status uint8, n2 int32) {
		r := report(rank(n, setInt(load.NumWaitingReqs, v), setFloat(load.TokenUsage, share)), rank(n2))
		r.Sequence, r.Status = seq, load.Status(status)
		if Shape(r, limits) != nil || r.Status == load.StatusUnreachable {
			return
		}
		if n == n2 || n < 0 || v < 0 || !load.Finite(share) || seq == 0 || seq > math.MaxInt64 {
			t.Errorf("accepted rank %d and %d, waiting %d, usage %v, sequence %d", n, n2, v, share, seq)
		}
		Normalise(&r.Ranks[0], false)
		if u, ok := r.Ranks[0].Float(load.TokenUsage); ok && u < 0 {
			t.Errorf("token_usage %v after Normalise", u)
		}
		if err := Shape(r, limits); err != nil {
			t.Errorf("an accepted report does not validate again: %v", err)
		}
	})
}
