package server

import (
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
)

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestIncoming_DecodesWholeReports(t *testing.T) {
	want := sane("src", 1, rank(0), rank(1))
	in := incoming{maxRanks: 2}
	in.decode(marshal(t, want))
	if in.err != nil {
		t.Fatal(in.err)
	}
	if d := cmp.Diff(want, &in.msg, protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

// Case E5: a report of very many ranks is refused, so it need not be decoded whole.
func TestIncoming_LeavesOutRanksBeyondTheBound(t *testing.T) {
	m := sane("src", 1)
	for i := range int32(100_000) {
		m.Ranks = append(m.Ranks, &modelgatewaypb.RankLoad{DpRank: i + 1})
	}
	b := append(marshal(t, m), marshal(t, &modelgatewaypb.LoadReport{SequenceId: 9})...) // fields may follow the ranks
	in := incoming{maxRanks: 1024}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	in.decode(b)
	runtime.ReadMemStats(&after)
	if in.err != nil {
		t.Fatal(in.err)
	}
	if len(in.msg.Ranks) != 1025 || in.msg.SourceInstanceId != "src" || in.msg.SequenceId != 9 {
		t.Errorf("%d ranks, source %q, sequence %d", len(in.msg.Ranks), in.msg.SourceInstanceId, in.msg.SequenceId)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("decoding %d bytes allocated %d", len(b), n)
	}
}

func TestIncoming_RefusesWhatIsNoReport(t *testing.T) {
	cases := map[string][]byte{
		"text":           []byte("GET / HTTP/1.1"),
		"cut short":      marshal(t, sane("src", 1))[:20],
		"field number 0": {0x02, 0x00},
		"not UTF-8":      {0x0a, 0x02, 0xff, 0xfe},
		"bad rank":       {0x3a, 0x02, 0x08, 0x80},
	}
	for name, b := range cases {
		t.Run(name, func(t *testing.T) {
			in := incoming{maxRanks: 4}
			if in.decode(b); in.err == nil {
				t.Errorf("accepted as %v", &in.msg)
			}
		})
	}
}

func FuzzIncoming(f *testing.F) {
	f.Add(marshal(f, sane("src", 1)))
	f.Add(marshal(f, sane("src", 1, rank(0), rank(1), rank(2), rank(3))))
	f.Add([]byte{0x3a, 0x00, 0x3a, 0x00, 0x3a, 0x00, 0x10, 0x05})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		in := incoming{maxRanks: 2}
		in.decode(b)
		if len(in.msg.Ranks) > 3 {
			t.Fatalf("%d ranks were decoded", len(in.msg.Ranks))
		}
		var want modelgatewaypb.LoadReport
		err := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, &want)
		if err == nil && in.err != nil {
			t.Fatalf("a report is refused: %v", in.err)
		}
		if err != nil || in.err != nil {
			return
		}
		want.Ranks = want.Ranks[:min(len(want.Ranks), 3)]
		if !proto.Equal(&want, &in.msg) {
			t.Fatalf("decoded %v, want %v", &in.msg, &want)
		}
	})
}

// Rule VAL3: a text for people that is not valid UTF-8 is made valid; a name that is not is refused.
func TestIncoming_LastErrorIsMadeValidText(t *testing.T) {
	encode := func(source, lastError string) []byte {
		b := protowire.AppendTag(nil, 1, protowire.BytesType)
		b = protowire.AppendString(b, source)
		b = protowire.AppendTag(b, 2, protowire.VarintType)
		b = protowire.AppendVarint(b, 7)
		b = protowire.AppendTag(b, lastErrorField, protowire.BytesType)
		return protowire.AppendString(b, lastError)
	}
	in := incoming{maxRanks: 8}
	in.decode(encode("srcA", "out of memory \xff\xfe!"))
	if in.err != nil || in.msg.GetLastError() != "out of memory \uFFFD!" || in.msg.GetSequenceId() != 7 || in.msg.GetSourceInstanceId() != "srcA" {
		t.Errorf("decoded %v, %v", &in.msg, in.err)
	}
	in = incoming{maxRanks: 8}
	in.decode(encode("src\xff", "x\xff"))
	if in.err == nil {
		t.Errorf("a source instance that is no text is taken: %v", &in.msg)
	}
	in = incoming{maxRanks: 8}
	in.decode([]byte{0x0a, 0x05, 'x'})
	if in.err == nil {
		t.Error("a message that breaks off is taken")
	}
}
