package drive

import (
	"testing"

	"google.golang.org/protobuf/proto"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
)

func TestMessage_CarriesWhatChanges(t *testing.T) {
	const begun = 1_700_000_000_000
	for _, ranks := range []int{1, 8, 32} {
		m, err := newMessage("source", "http://127.0.0.1:30000", ranks, begun)
		if err != nil {
			t.Fatal(err)
		}
		for n, sequence := range []uint64{1, 127, 128, 1 << 40} {
			nowMs := int64(begun + 1_000_000*n)
			buf := m.encode(sequence, nowMs, n+126)
			var got modelgatewaypb.LoadReport
			if err := proto.Unmarshal(buf.ReadOnlyData(), &got); err != nil {
				t.Fatal(err)
			}
			buf.Free()
			if got.GetSequenceId() != sequence || got.GetReportTimeUnixMs() != nowMs || got.GetSourceInstanceId() != "source" || len(got.GetRanks()) != ranks {
				t.Fatalf("%d ranks, sequence %d: %v", ranks, sequence, &got)
			}
			for i, r := range got.GetRanks() {
				if r.GetDpRank() != int32(i) || r.GetSnapshotTimeUnixMs() != nowMs || r.GetNumRunningReqs() != int64((n+126)%128) {
					t.Fatalf("%d ranks, rank %d: %v", ranks, i, r)
				}
				if r.GetMaxTotalNumTokens() != 1_000_000 || r.GetPrefillThroughput() != 9000 {
					t.Fatalf("%d ranks, rank %d: what does not change did: %v", ranks, i, r)
				}
			}
		}
	}
}

func TestMessage_EachIsItsReceiversOwn(t *testing.T) {
	m, err := newMessage("source", "http://127.0.0.1:30000", 1, 1_700_000_000_000)
	if err != nil {
		t.Fatal(err)
	}
	first := m.encode(1, 1_700_000_000_000, 5)
	before := string(first.ReadOnlyData())
	m.encode(2, 1_800_000_000_000, 6).Free()
	if string(first.ReadOnlyData()) != before {
		t.Error("the next report changed the one before, which may not have been sent yet")
	}
}
