package pub

import (
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/loadmonitor/loadmonitor/load"
)

// told returns a load that tells what the golden bytes tell.
func told(rank int32, ints map[load.IntSignal]int64, floats map[load.FloatSignal]float64, unixMs int64) load.RankLoad {
	l := load.RankLoad{DPRank: rank, SnapshotTimeUnixMs: unixMs}
	for s, v := range ints {
		l.SetInt(s, v)
	}
	for s, v := range floats {
		l.SetFloat(s, v)
	}
	return l
}

var (
	counts = map[load.IntSignal]int64{
		load.NumRunningReqs: 7, load.NumWaitingReqs: 3, load.NumUsedTokens: 1024, load.MaxTotalNumTokens: 8192,
	}
	allInts = map[load.IntSignal]int64{
		load.NumRunningReqs: 7, load.NumWaitingReqs: 3, load.NumUsedTokens: 1024, load.MaxTotalNumTokens: 8192,
		load.NumWaitingUncachedTokens: 600, load.NumTotalTokens: 1400, load.MaxRunningRequests: 256,
		load.TotalPrefillUncachedTokens: 900000, load.TotalPrefillBusyUs: 12500000,
	}
	allFloats = map[load.FloatSignal]float64{
		load.TokenUsage: 0.125, load.GenThroughput: 2345.5, load.CacheHitRate: 0.5, load.Utilization: 0.75,
	}
)

// The golden bytes are the payloads of the vectors of that name, which the decoder of bridge/zmq is tested with too.
func TestEncode_BytesAreThoseOfEngines(t *testing.T) {
	for _, tc := range []struct {
		vector string
		form   Form
		load   load.RankLoad
		want   string
	}{
		{"loadstat_5_fields", LoadStatShort, told(2, counts, nil, 0), "96a84c6f6164537461740703cd0400cd200002"},
		{"loadstat_zero_capacity", LoadStatShort, told(2, map[load.IntSignal]int64{load.NumRunningReqs: 7, load.NumWaitingReqs: 3, load.NumUsedTokens: 1024}, nil, 0),
			"96a84c6f6164537461740703cd04000002"},
		{"loadstat_10_fields", LoadStat, told(2, allInts, allFloats, 1761000000250),
			"9ba84c6f6164537461740703cd0400cd200002cd0258cd0578cd0100ce000dbba0ce00bebc20"},
		{"loadstat_10_fields_zero_suffix", LoadStat, told(2, counts, nil, 0), "9ba84c6f6164537461740703cd0400cd2000020000000000"},
		{"snapshot_map_full", LoadSnapshot, told(1, allInts, allFloats, 1761000000250),
			"8da974696d657374616d70cb41da3dae90100000a764705f72616e6b01b06e756d5f72756e6e696e675f7265717307b06e756d5f77616974696e675f726571" +
				"7303bb6e756d5f77616974696e675f756e6361636865645f746f6b656e73cd0258af6e756d5f757365645f746f6b656e73cd0400b06e756d5f746f74616c" +
				"5f746f6b656e73cd0578b46d61785f746f74616c5f6e756d5f746f6b656e73cd2000b46d61785f72756e6e696e675f7265717565737473cd0100ab746f6b" +
				"656e5f7573616765cb3fc0000000000000ae67656e5f7468726f756768707574cb40a2530000000000ae63616368655f6869745f72617465cb3fe0000000" +
				"000000ab7574696c697a6174696f6ecb3fe8000000000000"},
		{"snapshot_map_defaults_omitted", LoadSnapshot,
			told(0, map[load.IntSignal]int64{load.NumRunningReqs: 0, load.MaxTotalNumTokens: 8192, load.MaxRunningRequests: 256},
				map[load.FloatSignal]float64{load.TokenUsage: 0, load.GenThroughput: 0, load.CacheHitRate: 0, load.Utilization: 0}, 1761000001000),
			"83a974696d657374616d70cb41da3dae90400000b46d61785f746f74616c5f6e756d5f746f6b656e73cd2000b46d61785f72756e6e696e675f7265717565737473cd0100"},
	} {
		t.Run(tc.vector, func(t *testing.T) {
			got, _ := newEncoder().encode(tc.form, &tc.load, begin)
			if hex.EncodeToString(got) != tc.want {
				t.Errorf("%x\nwant %s", got, tc.want)
			}
		})
	}
}

// tell reads a payload of any form as a receiver does, without knowing this package.
func tell(t *testing.T, payload []byte) map[string]any {
	t.Helper()
	var v any
	if err := msgpack.Unmarshal(payload, &v); err != nil {
		t.Fatal(err)
	}
	got := map[string]any{}
	switch v := v.(type) {
	case []any:
		if v[0] != "LoadStat" {
			t.Fatalf("tag %v", v[0])
		}
		for i, key := range []string{"num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_total_num_tokens", "dp_rank"} {
			got[key] = fmt.Sprint(v[i+1])
		}
	case map[string]any:
		for _, key := range []string{"num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_total_num_tokens", "dp_rank"} {
			got[key] = "0"
			if value, there := v[key]; there {
				got[key] = fmt.Sprint(value)
			}
		}
	}
	return got
}

// Case G4.
func TestEncode_EveryFormTellsTheSame(t *testing.T) {
	for _, ints := range []map[load.IntSignal]int64{allInts, {}, {load.NumRunningReqs: 1 << 40, load.MaxTotalNumTokens: 127, load.NumWaitingReqs: 128}} {
		l := told(3, ints, nil, 0)
		e := newEncoder()
		first, _ := e.encode(LoadStat, &l, begin)
		want := tell(t, first)
		for _, form := range []Form{LoadStatShort, LoadSnapshot} {
			payload, _ := e.encode(form, &l, begin)
			if diff := cmp.Diff(want, tell(t, payload)); diff != "" {
				t.Errorf("%v (-%v +%v):\n%s", form, LoadStat, form, diff)
			}
		}
	}
}

// Case C8: an idle map leaves out what a busy one told, which says zero.
func TestEncode_IdleMapLeavesOutThroughput(t *testing.T) {
	busy := told(0, map[load.IntSignal]int64{load.NumRunningReqs: 8}, map[load.FloatSignal]float64{load.GenThroughput: 900}, 0)
	idle := told(0, map[load.IntSignal]int64{load.NumRunningReqs: 0}, map[load.FloatSignal]float64{load.GenThroughput: 0}, 0)
	e := newEncoder()
	for _, tc := range []struct {
		load *load.RankLoad
		want bool
	}{{&busy, true}, {&idle, false}} {
		payload, _ := e.encode(LoadSnapshot, tc.load, begin)
		var m map[string]any
		if err := msgpack.Unmarshal(payload, &m); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"gen_throughput", "num_running_reqs"} {
			if _, there := m[key]; there != tc.want {
				t.Errorf("%s is there: %v, want %v", key, there, tc.want)
			}
		}
	}
}

// Rule VAL2: what a map leaves out is zero, so a share that is not known is said to be -1.
func TestEncode_UnknownShareIsNotZero(t *testing.T) {
	l := told(0, nil, map[load.FloatSignal]float64{load.TokenUsage: 0}, 1)
	payload, _ := newEncoder().encode(LoadSnapshot, &l, begin)
	var m map[string]any
	if err := msgpack.Unmarshal(payload, &m); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"timestamp": 0.001, "cache_hit_rate": -1.0, "utilization": -1.0}, m); diff != "" {
		t.Error(diff)
	}
}

func TestEncode_VolatilePartIsTheTimeAlone(t *testing.T) {
	e := newEncoder()
	for _, form := range []Form{LoadStat, LoadStatShort, LoadSnapshot} {
		a, b := told(1, allInts, allFloats, 1761000000250), told(1, allInts, allFloats, 1761999999999)
		first, volatile := e.encode(form, &a, begin)
		kept := string(first[volatile:])
		second, _ := e.encode(form, &b, begin)
		if string(second[volatile:]) != kept {
			t.Errorf("%v: the rest differs with the time", form)
		}
		b.SetInt(load.NumRunningReqs, 8)
		third, _ := e.encode(form, &b, begin)
		if string(third[volatile:]) == kept {
			t.Errorf("%v: the rest is the same for another load", form)
		}
	}
}

func TestEncode_AllocatesNothing(t *testing.T) {
	e := newEncoder()
	l := told(1, allInts, allFloats, 1761000000250)
	for _, form := range []Form{LoadStat, LoadStatShort, LoadSnapshot} {
		if n := testing.AllocsPerRun(100, func() { e.encode(form, &l, begin) }); n != 0 {
			t.Errorf("%v: %v allocations", form, n)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	l := told(1, allInts, allFloats, 1761000000250)
	for _, form := range []Form{LoadStat, LoadStatShort, LoadSnapshot} {
		b.Run(form.String(), func(b *testing.B) {
			b.ReportAllocs()
			e := newEncoder()
			now := time.Now()
			for b.Loop() {
				e.encode(form, &l, now)
			}
		})
	}
}
