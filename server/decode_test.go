package server

import (
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// decoded decodes m with protobuf's encoding.
func decoded(t testing.TB, m *modelgatewaypb.LoadReport) (*load.Report, error) {
	t.Helper()
	r := &load.Report{}
	return r, decodeReport(marshal(t, m), r, &names{}, 1024)
}

func TestDecode_KeepsWhatWasTold(t *testing.T) {
	m := sane("src", 7, &modelgatewaypb.RankLoad{
		DpRank: 3, SnapshotTimeUnixMs: 11, NumRunningReqs: 1, NumWaitingReqs: 2, NumWaitingUncachedTokens: 3, NumUsedTokens: 4,
		NumTotalTokens: 5, MaxTotalNumTokens: 6, MaxRunningRequests: 7, TokenUsage: 0.5, GenThroughput: 8, CacheHitRate: 0.25,
		Utilization: 0.75, PrefillThroughput: 9,
	})
	m.LastError = new("why")
	r, err := decoded(t, m)
	if err != nil {
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
func TestDecode_TellsUnknownFromZero(t *testing.T) {
	told := func(t *testing.T, m *modelgatewaypb.RankLoad) *load.RankLoad {
		r, err := decoded(t, sane("src", 1, m))
		if err != nil || len(r.Ranks) != 1 {
			t.Fatalf("decoded %d ranks, %v", len(r.Ranks), err)
		}
		return &r.Ranks[0]
	}
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
			if v, ok := told(t, c.rank).Int(c.signal); v != c.want || ok != c.known {
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
			if v, ok := told(t, c.rank).Float(c.signal); v != c.want || ok != c.known {
				t.Errorf("%s is %v, %v; want %v, %v", c.signal, v, ok, c.want, c.known)
			}
		})
	}
}

// Case A4 (2): an absent or unknown type is never filed under a default role.
func TestDecode_UnknownEnumsAreUnspecified(t *testing.T) {
	for _, n := range []int32{0, 4, 77, -1, math.MaxInt32} {
		m := sane("src", 1)
		m.Worker.WorkerType, m.Status = modelgatewaypb.WorkerType(n), modelgatewaypb.ReportStatus(n)
		r, err := decoded(t, m)
		if err != nil || r.Claim.Role != load.RoleUnspecified || r.Status != load.StatusUnspecified {
			t.Errorf("%d is role %v and status %v, %v", n, r.Claim.Role, r.Status, err)
		}
	}
}

// Case H6 and rule VAL3: what identifies is refused when it is too long, what is shown is cut.
func TestDecode_BoundsStrings(t *testing.T) {
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
			m := sane("src", 1)
			c.edit(m)
			r, err := decoded(t, m)
			if !errors.Is(err, c.want) {
				t.Fatalf("error is %v, want %v", err, c.want)
			}
			if len(r.LastError) > 512 || !utf8.ValidString(r.LastError) {
				t.Errorf("last error has %d bytes, valid %v", len(r.LastError), utf8.ValidString(r.LastError))
			}
		})
	}
}

// A stream's reports repeat its names: nothing of them is made again, and nothing of a report stands in the next.
func TestDecode_UsesMemoryAgain(t *testing.T) {
	var r load.Report
	var last names
	large := sane("src", 1, rank(0), rank(1), rank(2))
	large.LastError = new("why")
	if err := decodeReport(marshal(t, large), &r, &last, 8); err != nil {
		t.Fatal(err)
	}
	small := marshal(t, sane("src", 2, &modelgatewaypb.RankLoad{DpRank: 5}))
	if n := testing.AllocsPerRun(100, func() { _ = decodeReport(small, &r, &last, 8) }); n > 0 {
		t.Errorf("decoding allocates %v times", n)
	}
	if len(r.Ranks) != 1 || r.Ranks[0].DPRank != 5 || r.LastError != "" {
		t.Fatalf("report is %+v", r)
	}
	if v, ok := r.Ranks[0].Int(load.MaxTotalNumTokens); ok {
		t.Errorf("capacity %d of the report before is still there", v)
	}
	for _, b := range [][]byte{marshal(t, sane("other", 3, rank(0))), marshal(t, sane("src", 4, rank(0)))} {
		var fresh load.Report
		if err := errors.Join(decodeReport(b, &r, &last, 8), decodeReport(b, &fresh, &names{}, 8)); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(fresh, r, cmp.AllowUnexported(load.RankLoad{})); d != "" {
			t.Error(d)
		}
	}
}

// Case E5: a report of very many ranks is refused, so it need not be decoded whole.
func TestDecode_LeavesOutRanksBeyondTheBound(t *testing.T) {
	m := sane("src", 1)
	for i := range int32(100_000) {
		m.Ranks = append(m.Ranks, &modelgatewaypb.RankLoad{DpRank: i + 1})
	}
	b := append(marshal(t, m), marshal(t, &modelgatewaypb.LoadReport{SequenceId: 9})...) // fields may follow the ranks
	var r load.Report
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := decodeReport(b, &r, &names{}, 1024)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Ranks) != 1025 || r.SourceInstance != "src" || r.Sequence != 9 {
		t.Errorf("%d ranks, source %q, sequence %d", len(r.Ranks), r.SourceInstance, r.Sequence)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("decoding %d bytes allocated %d", len(b), n)
	}
}

func TestDecode_RefusesWhatIsNoReport(t *testing.T) {
	cases := map[string][]byte{
		"text":               []byte("GET / HTTP/1.1"),
		"cut short":          marshal(t, sane("src", 1))[:20],
		"field number 0":     {0x02, 0x00},
		"source not UTF-8":   {0x0a, 0x02, 0xff, 0xfe},
		"zone not UTF-8":     {0x22, 0x03, 0x22, 0x01, 0xff},
		"bad rank":           {0x3a, 0x02, 0x08, 0x80},
		"rank cut short":     {0x3a, 0x05, 0x51, 0, 0, 0, 0},
		"varint of 11 bytes": append([]byte{0x10}, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"...),
		"end of no group":    {0x0c},
		"group":              {0x7b, 0x7c},
		"group of a rank":    {0x3a, 0x02, 0x7b, 0x7c},
		"group of a worker":  {0x22, 0x02, 0x7b, 0x7c},
	}
	for name, b := range cases {
		t.Run(name, func(t *testing.T) {
			var r load.Report
			if err := decodeReport(b, &r, &names{}, 4); !errors.Is(err, errUndecodable) {
				t.Errorf("decoded as %+v, %v", r, err)
			}
		})
	}
}

// Rule VAL3: a text for people that is not valid UTF-8 is made valid; a name that is not is refused.
func TestDecode_LastErrorIsMadeValidText(t *testing.T) {
	encode := func(source, lastError string) []byte {
		b := protowire.AppendTag(nil, sourceField, protowire.BytesType)
		b = protowire.AppendString(b, source)
		b = protowire.AppendTag(b, lastErrorField, protowire.BytesType)
		return protowire.AppendString(b, lastError)
	}
	var r load.Report
	if err := decodeReport(encode("srcA", "out of memory \xff\xfe!"), &r, &names{}, 8); err != nil || r.LastError != "out of memory \uFFFD!" || r.SourceInstance != "srcA" {
		t.Errorf("decoded %+v, %v", r, err)
	}
	if err := decodeReport(encode("src\xff", "x\xff"), &r, &names{}, 8); !errors.Is(err, errUndecodable) {
		t.Errorf("a source instance that is no text: %v", err)
	}
}

// oddReports are reports that no engine sends and protobuf has an opinion on.
func oddReports(t testing.TB) [][]byte {
	varint := func(n protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
	}
	part := func(n protowire.Number, parts ...[]byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), slices.Concat(parts...))
	}
	double := func(n protowire.Number, v float64) []byte {
		return protowire.AppendFixed64(protowire.AppendTag(nil, n, protowire.Fixed64Type), math.Float64bits(v))
	}
	text := func(n protowire.Number, s string) []byte { return part(n, []byte(s)) }
	whole := marshal(t, sane("src", 1, rank(0), rank(1)))
	return [][]byte{
		// A varint longer than it must be, in a tag, a length and a value; and one of ten bytes that is too large.
		{0x88, 0x80, 0x00, 0x01}, {0x90, 0x80, 0x80, 0x00, 0x81, 0x80, 0x00}, {0x0a, 0x81, 0x80, 0x00, 'x'},
		append([]byte{0x10}, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"...), append([]byte{0x10}, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"...),
		// Numbers with more bits than their field.
		varint(statusField, 1<<32|1), varint(statusField, math.MaxUint64), part(workerField, varint(typeField, 1<<32|3)),
		part(ranksField, varint(dpRankField, 1<<32|7), varint(numRunningReqsField, math.MaxUint64)), part(ranksField, varint(dpRankField, math.MaxUint32)),
		// Fields told twice, with another type between them: the last of the right type counts.
		slices.Concat(varint(sequenceField, 4), text(sequenceField, "\x05"), varint(sequenceField, 6), double(sequenceField, 7)),
		slices.Concat(text(sourceField, "src"), text(sourceField, "other"), varint(sourceField, 1), text(sourceField, "")),
		slices.Concat(text(lastErrorField, "a"), text(lastErrorField, "b\xff"), varint(lastErrorField, 3), text(lastErrorField, "")),
		part(ranksField, double(tokenUsageField, 0.5), varint(tokenUsageField, 9), text(tokenUsageField, "12345678"), double(numRunningReqsField, 3)),
		part(ranksField, varint(numTotalTokensField, 1), varint(numTotalTokensField, 0), double(utilizationField, math.NaN()), double(utilizationField, math.Copysign(0, -1))),
		// One worker in parts, and a rank never: ranks do not merge.
		slices.Concat(part(workerField, text(addressField, "a"), text(modelField, "m")), part(workerField), part(workerField, text(addressField, "b"), varint(typeField, 2)),
			part(workerField, varint(typeField, 0))),
		slices.Concat(part(ranksField, varint(dpRankField, 1)), part(ranksField), varint(ranksField, 1), part(ranksField, varint(numRunningReqsField, 2))),
		// Ranks beyond the bound, the first of which is still looked at.
		slices.Concat(part(ranksField), part(ranksField), part(ranksField, []byte{0x08}), part(ranksField)),
		slices.Concat(part(ranksField), part(ranksField), part(ranksField), part(ranksField, []byte{0x08}), varint(sequenceField, 2)),
		// Text that is none where it matters and where it does not, and a zone, which is checked and not kept.
		part(workerField, text(modelField, "\xed\xa0\x80")), part(9, []byte("\xff")), part(workerField, text(zoneField, "z"), text(9, "\xff")), part(workerField, text(addressField, "\xc0\x80")),
		// Unknown fields at the ends of the range of numbers and outside of it.
		varint(15, 1), varint(protowire.MaxValidNumber, 1), varint(protowire.FirstReservedNumber, 1), protowire.AppendVarint(nil, uint64(protowire.MaxValidNumber+1)<<3), {0xf8, 0xff, 0xff, 0xff, 0xff, 0x01, 0x00},
		part(ranksField, varint(15, 1), varint(numRankFields, 2), double(numRankFields, 1)), {0x3d, 1, 2, 3, 4}, {0x3d, 1, 2, 3}, {0x16}, {0x17},
		// Groups: known numbers, unknown ones, open, closed by another, closed twice.
		{0x3b, 0x08, 0x01, 0x3c}, {0x23, 0x0a, 0x01, 'x', 0x24}, {0x7b, 0x7b, 0x7c, 0x7c}, {0x7b}, {0x7b, 0x0c}, {0x7b, 0x7c, 0x7c}, part(ranksField, []byte{0x0b, 0x0c}), part(workerField, []byte{0x0b, 0x0c}),
		whole[:len(whole)-1], append(slices.Clone(whole), whole...),
	}
}

// FuzzDecode holds the decoder against protobuf's: what is taken, what is refused and what it says.
func FuzzDecode(f *testing.F) {
	const maxRanks = 2
	f.Add(marshal(f, sane("src", 1)))
	f.Add(marshal(f, sane("src", 1, rank(0), rank(1), rank(2), rank(3))))
	f.Add(append(marshal(f, sane("src", 1, rank(0))), marshal(f, sane("other", 2, rank(-1)))...))
	f.Add([]byte{0x3a, 0x00, 0x3a, 0x00, 0x3a, 0x00, 0x10, 0x05})
	f.Add([]byte{0x22, 0x02, 0x10, 0x03, 0x22, 0x04, 0x0a, 0x02, 'h', 'i'}) // one worker in two parts
	f.Add(binary.AppendUvarint([]byte{0x28}, math.MaxUint64))
	f.Add([]byte{})
	for _, b := range oddReports(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got := load.Report{Ranks: make([]load.RankLoad, 5)}
		last := names{source: "src", address: "http://127.0.0.5:30000", model: "m1"}
		gotErr := decodeReport(b, &got, &last, maxRanks)
		if len(got.Ranks) > maxRanks+1 {
			t.Fatalf("%d ranks were decoded", len(got.Ranks))
		}
		if refused := new(load.Refusal); errors.As(gotErr, &refused) {
			return // a name is too long
		}
		want, wantErr := reference(b, maxRanks)
		if gotErr != nil && hasGroup(b) {
			return
		}
		if (gotErr == nil) != (wantErr == nil) {
			t.Fatalf("error is %v, protobuf's is %v", gotErr, wantErr)
		}
		if gotErr != nil {
			return
		}
		sameNaN := cmp.Comparer(func(x, y load.RankLoad) bool { return string(bits(&x)) == string(bits(&y)) })
		if d := cmp.Diff(want, got, sameNaN); d != "" {
			t.Fatal(d)
		}
	})
}

// bits tells all of a rank, NaN included.
func bits(l *load.RankLoad) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(l.SnapshotTimeUnixMs))
	b = binary.BigEndian.AppendUint32(b, uint32(l.DPRank))
	for s := range load.NumIntSignals {
		v, known := l.Int(s)
		b, _ = binary.Append(b, binary.BigEndian, known)
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	for s := range load.NumFloatSignals {
		v, known := l.Float(s)
		b, _ = binary.Append(b, binary.BigEndian, known)
		b = binary.BigEndian.AppendUint64(b, math.Float64bits(v))
	}
	return b
}

// reference decodes with protobuf's own messages.
func reference(b []byte, maxRanks int) (r load.Report, err error) {
	m := &modelgatewaypb.LoadReport{}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(looked(b, maxRanks), m); err != nil {
		return r, err
	}
	r = load.Report{
		SourceInstance: m.GetSourceInstanceId(), Sequence: m.GetSequenceId(), ReportTimeUnixMs: m.GetReportTimeUnixMs(),
		Status: statusFromProto(m.GetStatus()), LastError: lastErrorOf(b), Ranks: []load.RankLoad{},
		Claim: load.Claim{Address: m.GetWorker().GetWorkerAddr(), Role: roleFromProto(m.GetWorker().GetWorkerType()), Model: m.GetWorker().GetModel()},
	}
	for _, rank := range m.GetRanks() {
		l := load.RankLoad{DPRank: rank.GetDpRank(), SnapshotTimeUnixMs: rank.GetSnapshotTimeUnixMs()}
		l.SetInt(load.NumRunningReqs, rank.GetNumRunningReqs())
		l.SetInt(load.NumWaitingReqs, rank.GetNumWaitingReqs())
		l.SetInt(load.NumWaitingUncachedTokens, rank.GetNumWaitingUncachedTokens())
		l.SetInt(load.NumUsedTokens, rank.GetNumUsedTokens())
		l.SetInt(load.NumTotalTokens, rank.GetNumTotalTokens())
		setCapacity(&l, load.MaxTotalNumTokens, rank.GetMaxTotalNumTokens())
		setCapacity(&l, load.MaxRunningRequests, rank.GetMaxRunningRequests())
		setShare(&l, load.TokenUsage, rank.GetTokenUsage())
		setShare(&l, load.CacheHitRate, rank.GetCacheHitRate())
		setShare(&l, load.Utilization, rank.GetUtilization())
		l.SetFloat(load.GenThroughput, rank.GetGenThroughput())
		l.SetFloat(load.PrefillThroughput, rank.GetPrefillThroughput())
		r.Ranks = append(r.Ranks, l)
	}
	return r, nil
}

// hasGroup reports whether there is a group in what the decoder looks at.
func hasGroup(b []byte) bool {
	for len(b) > 0 {
		number, wire, tag := protowire.ConsumeTag(b)
		_, _, n := protowire.ConsumeField(b)
		if n < 0 || wire == protowire.StartGroupType {
			return n >= 0
		}
		if wire == protowire.BytesType && (number == workerField || number == ranksField) {
			if value, _ := protowire.ConsumeBytes(b[tag:]); hasGroup(value) {
				return true
			}
		}
		b = b[n:]
	}
	return false
}

// looked leaves out last_error, which the decoder repairs and protobuf refuses, and ranks that the decoder does not look at.
func looked(b []byte, maxRanks int) (rest []byte) {
	ranks := 0
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeField(b)
		if n < 0 {
			return append(rest, b...)
		}
		if wire == protowire.BytesType && number == ranksField {
			ranks++
		}
		if wire != protowire.BytesType || number != lastErrorField && (number != ranksField || ranks <= maxRanks+1) {
			rest = append(rest, b[:n]...)
		}
		b = b[n:]
	}
	return rest
}

// lastErrorOf returns the last last_error of b as it is taken.
func lastErrorOf(b []byte) (text string) {
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeField(b)
		if n < 0 {
			return text
		}
		if number == lastErrorField && wire == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(b)
			value, _ := protowire.ConsumeBytes(b[tag:])
			text = bounded(strings.ToValidUTF8(string(value), "\uFFFD"), maxLastError)
		}
		b = b[n:]
	}
	return text
}
