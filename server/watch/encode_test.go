package watch

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// everything is a worker with every field set to a value of its own.
func everything(ranks int) *load.WorkerStatus {
	ws := &load.WorkerStatus{
		Worker: &load.Worker{
			ID: "worker-1", URL: "http://10.9.0.5:30000", Origin: "10.9.0.5:30000", Role: load.RoleDecode,
			Models: []string{"m1", "m2"}, Zone: "z1", ExpectedRanks: 8, Transport: load.TransportZMQ,
			TransportReason: "zmq: the engine advertises load port 5559",
		},
		Handle: 7, Freshness: load.Incomplete, Reason: "rank 3 never reported", Anomalies: load.OverCapacity | load.SourceConflict,
		SourceInstance: "source-1", Sequence: 1<<63 - 1, Restarts: 2, LastError: "timeout", Window: 2500 * time.Millisecond,
		Aggregate: load.Aggregate{RankCount: uint32(ranks)}, ChangedVersion: 5, DescribedVersion: 3,
	}
	for f := range load.NumIntFigures {
		ws.Aggregate.SetInt(f, 1<<53+int64(f))
	}
	for f := range load.NumFloatFigures {
		ws.Aggregate.SetFloat(f, 0.5+float64(f))
	}
	for i := range ranks {
		r := load.Rank{Freshness: load.Fresh, Received: load.Instant(1_000_000 + i), SampleAgeMs: int32(i)}
		r.Load.DPRank = int32(4 + i)
		for s := range load.NumIntSignals {
			r.Load.SetInt(s, int64(s)*1000+int64(i))
		}
		for s := range load.NumFloatSignals {
			r.Load.SetFloat(s, float64(s)/7)
		}
		ws.Ranks, ws.RankReasons = append(ws.Ranks, r), append(ws.RankReasons, "why")
	}
	return ws
}

func unmarshalWorker(t *testing.T, b []byte) *loadmonitorpb.Worker {
	t.Helper()
	w := &loadmonitorpb.Worker{}
	if err := proto.Unmarshal(b, w); err != nil {
		t.Fatalf("wire form of a worker: %v", err)
	}
	if len(w.ProtoReflect().GetUnknown()) > 0 {
		t.Fatalf("wire form of a worker has unknown fields: %x", w.ProtoReflect().GetUnknown())
	}
	return w
}

func TestEncodeWorker_EqualsGeneratedMessage(t *testing.T) {
	t.Parallel()
	zeroes := everything(2)
	for s := range load.NumIntSignals {
		zeroes.Ranks[0].Load.SetInt(s, 0)
		zeroes.Ranks[1].Load.UnsetInt(s)
	}
	for s := range load.NumFloatSignals {
		zeroes.Ranks[0].Load.SetFloat(s, 0)
		zeroes.Ranks[1].Load.UnsetFloat(s)
	}
	zeroes.Ranks[0].SampleAgeMs, zeroes.Ranks[1].SampleAgeMs = 0, -1
	zeroes.Aggregate = load.Aggregate{}
	for _, tc := range []struct {
		name string
		ws   *load.WorkerStatus
	}{
		{"every field", everything(8)},
		{"told zero and not told", zeroes},
		{"nothing reported", &load.WorkerStatus{Worker: &load.Worker{ID: "w"}, Handle: 1, Freshness: load.Missing}},
		{"nothing at all", &load.WorkerStatus{Worker: &load.Worker{}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := toProto(&load.Entry{WorkerStatus: tc.ws})
			enc := encodeWorker(tc.ws)
			if diff := cmp.Diff(want, unmarshalWorker(t, enc.of(&view{ranks: true})), protocmp.Transform()); diff != "" {
				t.Errorf("with ranks (-generated +encoded):\n%s", diff)
			}
			want.SetRanks(nil)
			if diff := cmp.Diff(want, unmarshalWorker(t, enc.of(&view{})), protocmp.Transform()); diff != "" {
				t.Errorf("without ranks (-generated +encoded):\n%s", diff)
			}
		})
	}
}

// A field that is added to the API and forgotten here would stay silent for ever.
func TestEncodeWorker_LeavesNoFieldOut(t *testing.T) {
	t.Parallel()
	w := unmarshalWorker(t, encodeWorker(everything(1)).bytes)
	for _, m := range []protoreflect.Message{
		w.ProtoReflect(), w.GetAggregate().ProtoReflect(), everythingRank(t).ProtoReflect(),
	} {
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			if !m.Has(fields.Get(i)) {
				t.Errorf("%s is not encoded", fields.Get(i).FullName())
			}
		}
	}
}

func everythingRank(t *testing.T) *loadmonitorpb.Rank {
	return unmarshalWorker(t, encodeWorker(everything(1)).bytes).GetRanks()[0]
}

// The values here are spelt out once, so that encoder and builder cannot be wrong together.
func TestEncodeWorker_PutsEachValueInItsField(t *testing.T) {
	t.Parallel()
	w := unmarshalWorker(t, encodeWorker(everything(1)).bytes)
	i := func(v int64) *int64 { return &v }
	f := func(v float64) *float64 { return &v }
	want := loadmonitorpb.Worker_builder{
		Handle: 7, Id: "worker-1", Url: "http://10.9.0.5:30000", Role: loadmonitorpb.Role_ROLE_DECODE,
		Models: []string{"m1", "m2"}, Zone: "z1", Transport: loadmonitorpb.Transport_TRANSPORT_ZMQ,
		TransportReason: "zmq: the engine advertises load port 5559", Freshness: loadmonitorpb.Freshness_FRESHNESS_INCOMPLETE, Reason: "rank 3 never reported",
		SourceInstance: "source-1", Sequence: 1<<63 - 1, Restarts: 2,
		Aggregate: loadmonitorpb.Aggregate_builder{
			RankCount: 1, NumRunningReqs: i(1 << 53), NumWaitingReqs: i(1<<53 + 1), NumWaitingUncachedTokens: i(1<<53 + 2),
			NumUsedTokens: i(1<<53 + 3), NumTotalTokens: i(1<<53 + 4), MaxTotalNumTokens: i(1<<53 + 5),
			MaxRunningRequests: i(1<<53 + 6), TotalRequests: i(1<<53 + 7), FreeTokens: i(1<<53 + 8),
			AvailableSlots: i(1<<53 + 9), MaxRankWaitingReqs: i(1<<53 + 10), GenThroughput: f(0.5), QueuePressure: f(1.5),
			RequestUtilization: f(2.5), WeightedTokenUsage: f(3.5), MaxRankTokenUsage: f(4.5), PrefillRate: f(5.5),
			PrefillQueueMs: f(6.5),
		}.Build(),
		Ranks: []*loadmonitorpb.Rank{loadmonitorpb.Rank_builder{
			DpRank: 4, Freshness: loadmonitorpb.Freshness_FRESHNESS_FRESH, ReceivedUs: 1_000_000, Reason: "why",
			SampleAgeMs: i(0), NumRunningReqs: i(0), NumWaitingReqs: i(1000), NumWaitingUncachedTokens: i(2000),
			NumUsedTokens: i(3000), NumTotalTokens: i(4000), MaxTotalNumTokens: i(5000), MaxRunningRequests: i(6000),
			TotalPrefillUncachedTokens: i(7000), TotalPrefillBusyUs: i(8000), TokenUsage: f(0), GenThroughput: f(1. / 7),
			CacheHitRate: f(2. / 7), Utilization: f(3. / 7), PrefillThroughput: f(4. / 7),
		}.Build()},
		ExpectedRanks: 8, OldestReceivedUs: 1_000_000, FreshnessWindowMs: 2500,
		Anomalies: []string{"over_capacity", "source_conflict"}, LastError: "timeout",
	}.Build()
	if diff := cmp.Diff(want, w, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +encoded):\n%s", diff)
	}
}

func TestEnums_HaveTheSameNumbersInLoadAndAPI(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ domain, api int32 }{
		{int32(load.RoleRegular), int32(loadmonitorpb.Role_ROLE_REGULAR)},
		{int32(load.RolePrefill), int32(loadmonitorpb.Role_ROLE_PREFILL)},
		{int32(load.RoleDecode), int32(loadmonitorpb.Role_ROLE_DECODE)},
		{int32(load.TransportPush), int32(loadmonitorpb.Transport_TRANSPORT_PUSH)},
		{int32(load.TransportZMQ), int32(loadmonitorpb.Transport_TRANSPORT_ZMQ)},
		{int32(load.TransportDial), int32(loadmonitorpb.Transport_TRANSPORT_DIAL)},
		{int32(load.TransportPoll), int32(loadmonitorpb.Transport_TRANSPORT_POLL)},
		{int32(load.Fresh), int32(loadmonitorpb.Freshness_FRESHNESS_FRESH)},
		{int32(load.Stale), int32(loadmonitorpb.Freshness_FRESHNESS_STALE)},
		{int32(load.Missing), int32(loadmonitorpb.Freshness_FRESHNESS_MISSING)},
		{int32(load.Incomplete), int32(loadmonitorpb.Freshness_FRESHNESS_INCOMPLETE)},
		{int32(load.Unreachable), int32(loadmonitorpb.Freshness_FRESHNESS_UNREACHABLE)},
		{int32(load.FleetWarmingUp), int32(loadmonitorpb.FleetState_FLEET_STATE_WARMING_UP)},
		{int32(load.FleetReady), int32(loadmonitorpb.FleetState_FLEET_STATE_READY)},
		{int32(load.FleetNoWorkers), int32(loadmonitorpb.FleetState_FLEET_STATE_NO_WORKERS)},
	} {
		if tc.domain != tc.api {
			t.Errorf("load has %d where the API has %d", tc.domain, tc.api)
		}
	}
}

// Rule W7: encoding happens once per changed worker, whoever asks.
func TestEncoded_IsMadeOncePerState(t *testing.T) {
	ws := everything(8)
	first := encoded(ws)
	if encoded(ws) != first {
		t.Error("a second call encoded again")
	}
	if n := testing.AllocsPerRun(100, func() { encoded(ws) }); n != 0 {
		t.Errorf("looking up the wire form allocates %v times", n)
	}
}
