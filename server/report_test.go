package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

func TestReport_ServesBothNames(t *testing.T) {
	r := start(t, Options{})
	cc := r.dial()
	for _, method := range []string{modelgatewaypb.LoadMonitorService_Report_FullMethodName, "/router.loadmonitor.v1.LoadMonitorService/Report"} {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := cc.NewStream(ctx, &modelgatewaypb.LoadMonitorService_ServiceDesc.Streams[0], method)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(sane("src", 41, rank(0), rank(4))); err != nil {
			t.Fatal(err)
		}
		got := next(t, r.ingest.applied, "report over "+method)
		if got.Sequence != 41 || len(got.Ranks) != 2 || got.Ranks[1].DPRank != 4 {
			t.Errorf("%s: applied %+v", method, got)
		}
		cancel()
		next(t, r.ingest.ended, "release of a cancelled stream")
	}
}

func TestReport_AppliesInOrder(t *testing.T) {
	r := start(t, Options{})
	stream := report(t, r.dial())
	for seq := range uint64(500) {
		send(t, stream, sane("src", seq+1))
	}
	for seq := range uint64(500) {
		if got := next(t, r.ingest.applied, "report"); got.Sequence != seq+1 {
			t.Fatalf("applied %d, want %d", got.Sequence, seq+1)
		}
	}
}

// The stream part of case A1, and rules ID4 and ID5: whoever is superseded learns it although it says nothing, and a late
// report of the old source on another stream is refused.
func TestReport_TakeoverEndsTheOlderStream(t *testing.T) {
	var first *load.Stream
	ingest := newFakeIngest(func(st *load.Stream, r *load.Report) error {
		switch {
		case r.SourceInstance == "srcA" && first == nil:
			first = st
		case r.SourceInstance == "srcB":
			first.End(fmt.Errorf("worker w1: %w", load.ErrSourceSuperseded))
		default:
			return fmt.Errorf("worker w1: %w", load.ErrRetiredSource)
		}
		return nil
	})
	r := start(t, Options{Ingest: ingest})
	late := report(t, r.dial()) // opened before the takeover, silent so far

	a := report(t, r.dial())
	send(t, a, sane("srcA", 500, rank(0), rank(1), rank(2), rank(3)))
	next(t, ingest.applied, "report of srcA")
	b := report(t, r.dial())
	send(t, b, sane("srcB", 1))
	next(t, ingest.applied, "report of srcB")

	if st := endOf(t, a); st.Code() != codes.Aborted || !strings.Contains(st.Message(), "took over") {
		t.Errorf("the older stream ended with %v", st)
	}
	next(t, ingest.ended, "release of the older stream")
	send(t, late, sane("srcA", 501))
	if st := endOf(t, late); st.Code() != codes.InvalidArgument || !strings.Contains(st.Message(), "replaced") {
		t.Errorf("the late report ended its stream with %v", st)
	}
	send(t, b, sane("srcB", 2))
	next(t, ingest.applied, "refused report")
	if got := next(t, ingest.applied, "second report of srcB"); got.SourceInstance != "srcB" || got.Sequence != 2 {
		t.Errorf("applied %+v", got)
	}
}

func TestReport_RefusedIdentityEndsTheStream(t *testing.T) {
	cases := []struct {
		name string
		edit func(*modelgatewaypb.LoadReport)
		err  error // of Apply
		code codes.Code
	}{
		{"unknown worker", func(*modelgatewaypb.LoadReport) {}, load.ErrUnknownWorker, codes.InvalidArgument},
		{"not ready", func(*modelgatewaypb.LoadReport) {}, load.ErrNotReady, codes.Unavailable},
		{"removed", func(*modelgatewaypb.LoadReport) {}, load.ErrWorkerRemoved, codes.NotFound},
		{"unforeseen", func(*modelgatewaypb.LoadReport) {}, errors.New("what"), codes.Internal},
		{"model of 64 KB (case H6)", func(m *modelgatewaypb.LoadReport) { m.Worker.Model = new(strings.Repeat("m", 64<<10)) }, nil, codes.InvalidArgument},
		{"source instance of 300 bytes", func(m *modelgatewaypb.LoadReport) { m.SourceInstanceId = strings.Repeat("s", 300) }, nil, codes.InvalidArgument},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ingest := newFakeIngest(func(*load.Stream, *load.Report) error {
				if c.err == nil {
					return nil
				}
				return fmt.Errorf("worker w1: %w", c.err)
			})
			r := start(t, Options{Ingest: ingest})
			stream := report(t, r.dial())
			m := sane("src", 1)
			c.edit(m)
			send(t, stream, m)
			if st := endOf(t, stream); st.Code() != c.code {
				t.Errorf("stream ended with %v, want %v", st, c.code)
			}
			next(t, ingest.ended, "release")
		})
	}
}

// Case A4 (2) and (3): a type that is absent or that the contract does not know reaches the rules as unspecified.
func TestReport_UnknownTypeIsNeverADefaultRole(t *testing.T) {
	ingest := newFakeIngest(func(_ *load.Stream, r *load.Report) error {
		if r.Claim.Role == load.RoleUnspecified {
			return load.ErrRoleMismatch
		}
		return nil
	})
	r := start(t, Options{Ingest: ingest})
	cc := r.dial()
	for _, typ := range []modelgatewaypb.WorkerType{0, 4, 99} {
		stream := report(t, cc)
		m := sane("src", 1)
		m.Worker.WorkerType = typ
		send(t, stream, m)
		if st := endOf(t, stream); st.Code() != codes.InvalidArgument || !strings.Contains(st.Message(), "role") {
			t.Errorf("type %d: stream ended with %v", typ, st)
		}
	}
}

// The wire part of case B5: wild sequences pass unchanged, are refused by value, and the stream goes on.
func TestReport_WildSequenceDoesNotEndTheStream(t *testing.T) {
	ingest := newFakeIngest(func(_ *load.Stream, r *load.Report) error {
		if r.Sequence == 0 || r.Sequence > math.MaxInt64 {
			return load.ErrSequenceRange
		}
		return nil
	})
	r := start(t, Options{Ingest: ingest})
	stream := report(t, r.dial())
	want := []uint64{math.MaxUint64, 1, 0, 1 << 63, 2}
	for _, seq := range want {
		send(t, stream, sane("srcA", seq))
	}
	for _, seq := range want {
		if got := next(t, ingest.applied, "report"); got.Sequence != seq {
			t.Errorf("applied sequence %d, want %d", got.Sequence, seq)
		}
	}
	if n := strings.Count(r.log.String(), "report refused"); n != 1 {
		t.Errorf("%d log lines for one reason:\n%s", n, r.log)
	}
}

// The wire part of case E5: strange rank sets reach the rules as they are, and huge ones bounded.
func TestReport_StrangeRanksReachTheRules(t *testing.T) {
	ingest := newFakeIngest(func(*load.Stream, *load.Report) error { return load.ErrRankRange })
	r := start(t, Options{Ingest: ingest, MaxRanks: 64})
	many := make([]*modelgatewaypb.RankLoad, 100_000)
	for i := range many {
		many[i] = &modelgatewaypb.RankLoad{DpRank: int32(i)}
	}
	cases := []struct {
		name  string
		ranks []*modelgatewaypb.RankLoad
		want  []int32
	}{
		{"none", []*modelgatewaypb.RankLoad{}, []int32{}},
		{"negative", []*modelgatewaypb.RankLoad{rank(-1)}, []int32{-1}},
		{"largest", []*modelgatewaypb.RankLoad{rank(math.MaxInt32)}, []int32{math.MaxInt32}},
		{"twice", []*modelgatewaypb.RankLoad{rank(0), rank(0)}, []int32{0, 0}},
		{"100,000", many, nil},
	}
	stream := report(t, r.dial())
	for i, c := range cases {
		m := sane("src", uint64(i+1))
		m.Ranks = c.ranks
		send(t, stream, m)
		got := next(t, ingest.applied, c.name)
		if c.want == nil {
			if len(got.Ranks) != 65 {
				t.Errorf("%s: %d ranks were applied, want one above the bound", c.name, len(got.Ranks))
			}
			continue
		}
		if len(got.Ranks) != len(c.want) {
			t.Fatalf("%s: %d ranks", c.name, len(got.Ranks))
		}
		for j, n := range c.want {
			if got.Ranks[j].DPRank != n {
				t.Errorf("%s: rank %d is %d", c.name, j, got.Ranks[j].DPRank)
			}
		}
	}
}

// Case H6: a message above the bound ends its own stream, with a code after which the engine comes back, and nothing else
// on the connection.
func TestReport_TooLargeMessageEndsOnlyItsStream(t *testing.T) {
	r := start(t, Options{})
	cc := r.dial()
	other, large := report(t, cc), report(t, cc)
	send(t, other, sane("other", 1))
	next(t, r.ingest.applied, "report")
	m := sane("src", 1)
	m.LastError = new(strings.Repeat("e", 5<<20))
	send(t, large, m)
	if st := endOf(t, large); st.Code() != codes.ResourceExhausted || st.Message() != "message is too large: 5242975 bytes, at most 1048576" {
		t.Errorf("stream ended with %v", st)
	}
	send(t, other, sane("other", 2))
	if got := next(t, r.ingest.applied, "report on the other stream"); got.Sequence != 2 {
		t.Errorf("applied %+v", got)
	}
	r.shutdown() // the handler has counted
	if n := r.reports.ended.count("too_large"); n != 1 {
		t.Errorf("counted %d", n)
	}
}

func TestReport_LargeMessageWithinTheBoundIsTaken(t *testing.T) {
	r := start(t, Options{})
	stream := report(t, r.dial())
	m := sane("src", 1)
	m.LastError = new(strings.Repeat("e", 900<<10))
	send(t, stream, m)
	if got := next(t, r.ingest.applied, "report"); len(got.LastError) != maxLastError {
		t.Errorf("last error has %d bytes", len(got.LastError))
	}
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }
func (rawCodec) Name() string                         { return "proto" }

func TestReport_UndecodableMessageIsInvalidArgument(t *testing.T) {
	r := start(t, Options{})
	for name, b := range map[string][]byte{"text": []byte("hello"), "not UTF-8": {0x0a, 0x02, 0xff, 0xfe}} {
		stream, err := r.dial().NewStream(t.Context(), &modelgatewaypb.LoadMonitorService_ServiceDesc.Streams[0],
			modelgatewaypb.LoadMonitorService_Report_FullMethodName, grpc.ForceCodecV2(rawCodec{}))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(b); err != nil {
			t.Fatal(err)
		}
		if st := endOf(t, stream); st.Code() != codes.InvalidArgument || !strings.Contains(st.Message(), "LoadReport") {
			t.Errorf("%s: stream ended with %v", name, st)
		}
		next(t, r.ingest.ended, "release")
	}
	if n := r.reports.ended.count("undecodable"); n != 2 {
		t.Errorf("counted %d", n)
	}
}

func TestReport_HalfCloseIsNeverOK(t *testing.T) {
	r := start(t, Options{})
	stream := report(t, r.dial())
	send(t, stream, sane("src", 1))
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if st := endOf(t, stream); st.Code() != codes.Unavailable {
		t.Errorf("stream ended with %v", st)
	}
	next(t, r.ingest.ended, "release")
}

// A call with a deadline ends with a status after which the engine comes back: its own clock may say so later than ours.
func TestReport_EndOfReadingHasACode(t *testing.T) {
	cases := []struct {
		err  error
		code codes.Code
	}{
		{io.EOF, codes.Unavailable},
		{status.FromContextError(context.Canceled).Err(), codes.Canceled},
		{status.FromContextError(context.DeadlineExceeded).Err(), codes.DeadlineExceeded},
		{io.ErrUnexpectedEOF, codes.Unavailable},
	}
	for _, c := range cases {
		if got := codeOf(readEnd(c.err)); got != c.code {
			t.Errorf("%v ends the stream with %v, want %v", c.err, got, c.code)
		}
	}
}

func TestReport_BoundOnStreamsRefusesAndFreesAgain(t *testing.T) {
	r := start(t, Options{MaxReportStreams: 2})
	cc := r.dial()
	ctx, cancel := context.WithCancel(t.Context())
	first, err := modelgatewaypb.NewLoadMonitorServiceClient(cc).Report(ctx)
	if err != nil {
		t.Fatal(err)
	}
	send(t, first, sane("a", 1))
	next(t, r.ingest.applied, "report of a")
	second := report(t, cc)
	send(t, second, sane("b", 1))
	next(t, r.ingest.applied, "report of b")

	third := report(t, r.dial())
	if st := endOf(t, third); st.Code() != codes.ResourceExhausted || !strings.Contains(st.Message(), "too many report streams") {
		t.Errorf("the third stream ended with %v", st)
	}
	if n := r.reports.ended.count("too_many_streams"); n != 1 {
		t.Errorf("counted %d", n)
	}
	cancel()
	next(t, r.ingest.ended, "release of a")
	again := report(t, cc)
	send(t, again, sane("c", 1))
	if got := next(t, r.ingest.applied, "report of c"); got.SourceInstance != "c" {
		t.Errorf("applied %+v", got)
	}
}

// A stream on which nothing arrives is ended; one report is enough, how often the engine reports is not this bound's
// business.
func TestReport_SilentStreamIsEnded(t *testing.T) {
	inBubble(t, noOptions, func(t *testing.T, b *bubble) {
		stream := report(t, b.dial())
		send(t, stream, sane("src", 1))
		next(t, b.ingest.applied, "report")
		time.Sleep(time.Hour)
		send(t, stream, sane("src", 2))
		if got := next(t, b.ingest.applied, "report after an hour"); got.Sequence != 2 {
			t.Errorf("applied %+v", got)
		}
		silent := report(t, b.dial())
		begin := time.Now()
		if st := endOf(t, silent); st.Code() != codes.DeadlineExceeded {
			t.Errorf("the silent stream ended with %v", st)
		}
		if waited := time.Since(begin); waited != 10*time.Second {
			t.Errorf("the silent stream ended after %v", waited)
		}
		<-b.ingest.ended
		if n := b.reports.ended.count("no_first_report"); n != 1 {
			t.Errorf("counted %d", n)
		}
	})
}

// A connection may carry the streams of many workers (a sidecar).
func TestReport_ManyStreamsOnOneConnection(t *testing.T) {
	r := start(t, Options{})
	cc := r.dial()
	for i := range 300 {
		send(t, report(t, cc), sane(fmt.Sprint("src", i), 1))
	}
	for range 300 {
		next(t, r.ingest.applied, "report")
	}
	if n := r.reports.open.count(); n != 300 {
		t.Errorf("%d streams are open", n)
	}
}

// The report part of case N3: streams that are opened and reset at once leave nothing behind.
func TestReport_OpenedAndResetAtOnceLeavesNothing(t *testing.T) {
	r := start(t, Options{})
	client := modelgatewaypb.NewLoadMonitorServiceClient(r.dial())
	for i := range 1000 {
		ctx, cancel := context.WithCancel(t.Context())
		if stream, err := client.Report(ctx); err == nil && i%2 == 0 {
			_ = stream.Send(sane("src", 1)) // an error says that the reset was faster
		}
		cancel()
	}
	r.shutdown()
	assertNothingRuns(t)
	if n := r.reports.open.count(); n != 0 {
		t.Errorf("%d streams are open", n)
	}
}
