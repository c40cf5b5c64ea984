package reporter

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/testing/protocmp"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// offsets returns when the reports arrived, counted from start.
func offsets(arrivals []arrival, start time.Time) []time.Duration {
	var out []time.Duration
	for _, a := range arrivals {
		out = append(out, a.at.Sub(start))
	}
	return out
}

func TestStream_FirstReportAtOnceThenAtFixedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.start(t)
		r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
		start := time.Now()
		mustStart(t, r, request())
		after(3500 * time.Millisecond)
		want := []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second}
		if diff := cmp.Diff(want, offsets(m.arrivals(), start)); diff != "" {
			t.Errorf("arrivals (-want +got):\n%s", diff)
		}
		if n := len(m.streams()); n != 1 {
			t.Errorf("%d streams, want 1", n)
		}
		s := r.Stats()
		if s.Sent != 4 || s.Skipped != 0 || s.Reconnects != 0 || s.Targets[0].State != Streaming {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestStream_RenewalMovesNextReportToOneIntervalFromNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.start(t)
		r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
		start := time.Now()
		mustStart(t, r, request())
		after(1700 * time.Millisecond) // reports at 0 and 1 s; the next was due at 2 s
		req := request()
		req.ReportInterval = 2 * time.Second
		if lease := mustStart(t, r, req); !lease.Renewed || lease.RenewAfter != 5*time.Second {
			t.Errorf("lease %+v", lease)
		}
		after(4100 * time.Millisecond)
		want := []time.Duration{0, time.Second, 3700 * time.Millisecond, 5700 * time.Millisecond}
		if diff := cmp.Diff(want, offsets(m.arrivals(), start)); diff != "" {
			t.Errorf("arrivals (-want +got):\n%s", diff)
		}
		if n := len(m.streams()); n != 1 {
			t.Errorf("%d streams, want 1: a renewal keeps the stream", n)
		}
	})
}

// wide is a sampler whose reports, of about 60 KB, soon fill the window of a stream that nobody reads.
func wide(dst []load.RankLoad) ([]load.RankLoad, error) {
	for i := range 2000 {
		r := load.RankLoad{DPRank: int32(i)}
		r.SetInt(load.MaxTotalNumTokens, 1<<40)
		r.SetFloat(load.GenThroughput, 0.1)
		dst = append(dst, r)
	}
	return dst, nil
}

// A monitor that does not read blocks the send; what was due meanwhile is not sent later.
func TestStream_MissedPeriodsAreSkippedNotReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		resume := make(chan struct{})
		m.serve = func(stream reportStream) error {
			<-resume
			return m.drain(stream)
		}
		m.start(t)
		r := run(t, Options{Sample: wide, DialOptions: []grpc.DialOption{m.dial()}})
		start := time.Now()
		mustStart(t, r, request())
		after(9500 * time.Millisecond)
		sentWhileBlocked := r.Stats().Sent
		close(resume)
		after(2 * time.Second)
		got := offsets(m.arrivals(), start)
		queued := 0 // those that were on their way when the monitor began to read
		for _, at := range got {
			if at == 9500*time.Millisecond {
				queued++
			}
		}
		if uint64(queued) > sentWhileBlocked+1 || queued > 4 {
			t.Errorf("%d reports came at once, %d were sent before: periods were replayed", queued, sentWhileBlocked)
		}
		want := []time.Duration{10 * time.Second, 11 * time.Second}
		if diff := cmp.Diff(want, got[queued:]); diff != "" {
			t.Errorf("arrivals after the block (-want +got):\n%s", diff)
		}
		if s := r.Stats(); s.Sent+s.Skipped != 12 { // periods 0 s to 11 s
			t.Errorf("sent %d + skipped %d, want 12 periods in all", s.Sent, s.Skipped)
		}
	})
}

func TestNextDue_SkipsToTheFirstPeriodThatIsNotPast(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	for _, tc := range []struct {
		name           string
		due, now, want float64
		missed         uint64
	}{
		{"in time", 1, 1, 2, 0},
		{"late within the period", 1, 1.9, 2, 0},
		{"exactly at the next", 1, 2, 2, 0},
		{"a little past the next", 1, 2.1, 3, 1},
		{"long asleep", 1, 6.5, 7, 5},
		{"exactly whole periods", 1, 6, 6, 4},
	} {
		next, missed := nextDue(at(tc.due), at(tc.now), time.Second)
		if !next.Equal(at(tc.want)) || missed != tc.missed {
			t.Errorf("%s: next %v missed %d, want %v and %d", tc.name, next.Sub(at(0)), missed, tc.want, tc.missed)
		}
	}
}

func TestStream_EndOfLeaseCancelsTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.start(t)
		r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
		start := time.Now()
		mustStart(t, r, request())
		after(10 * time.Second)
		mustStart(t, r, request()) // now until 25 s
		after(20 * time.Second)
		ends := m.endings()
		if len(ends) != 1 {
			t.Fatalf("%d endings, want 1", len(ends))
		}
		if at := ends[0].at.Sub(start); at != 25*time.Second {
			t.Errorf("ended after %v, want 25s", at)
		}
		if code := status.Code(ends[0].err); code != codes.Canceled {
			t.Errorf("ended with %v, want %v", code, codes.Canceled)
		}
		if s := r.Stats(); len(s.Targets) != 0 {
			t.Errorf("targets %+v, want none", s.Targets)
		}
		if lease := mustStart(t, r, request()); lease.Renewed {
			t.Error("a registration after the lease counts as a renewal")
		}
	})
}

func TestStream_EndOfLeaseFreesASendThatIsBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		cancelled := make(chan time.Time, 1)
		m.serve = func(stream reportStream) error {
			<-stream.Context().Done()
			cancelled <- time.Now()
			return nil
		}
		m.start(t)
		r := run(t, Options{Sample: wide, DialOptions: []grpc.DialOption{m.dial()}})
		start := time.Now()
		mustStart(t, r, request())
		after(14 * time.Second)
		if s := r.Stats(); s.Sent > 5 {
			t.Fatalf("%d reports were sent to a monitor that reads nothing", s.Sent)
		}
		if at := (<-cancelled).Sub(start); at != 15*time.Second {
			t.Errorf("cancelled after %v, want 15s", at)
		}
		synctest.Wait()
		if s := r.Stats(); len(s.Targets) != 0 {
			t.Errorf("targets %+v are left", s.Targets)
		}
	})
}

func TestStream_CodeDecidesWhatComesNext(t *testing.T) {
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		want := Connecting // not asked
		alive := true
		switch code {
		case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
			want = BackingOff
		case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
			want = AwaitingRenewal
		default:
			alive = false
		}
		t.Run(code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &monitor{}
				m.serve = refuseAfterFirst(m, status.Error(code, "because"))
				m.start(t)
				r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
				req := request()
				req.LeaseTTL = time.Minute
				mustStart(t, r, req)
				synctest.Wait()
				targets := r.Stats().Targets
				if alive != (len(targets) == 1) {
					t.Fatalf("targets %+v, want alive %v", targets, alive)
				}
				if alive && (targets[0].State != want || targets[0].LastError != "because") {
					t.Errorf("state %v, last error %q, want %v", targets[0].State, targets[0].LastError, want)
				}
				after(8 * time.Second)
				tries := len(m.streams())
				if again := tries > 1; again != (want == BackingOff) {
					t.Errorf("%d streams without a renewal", tries)
				}
				if lease := mustStart(t, r, req); lease.Renewed != alive {
					t.Errorf("renewed %v, want %v", lease.Renewed, alive)
				}
				after(10 * time.Millisecond)
				if got := len(m.streams()); want != BackingOff && got != tries+1 {
					t.Errorf("%d streams after the next POST, want %d", got, tries+1)
				}
			})
		})
	}
}

// Posting in a loop must not make the engine dial in a loop.
func TestStream_RenewalsInALoopDoNotMakeDialsInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.serve = refuseAfterFirst(m, status.Error(codes.InvalidArgument, "unknown worker"))
		m.start(t)
		r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
		for range 1000 {
			mustStart(t, r, request())
			after(10 * time.Millisecond)
		}
		if n := len(m.streams()); n > 45 {
			t.Errorf("%d streams in 10 s, want at most 4 a second", n)
		}
	})
}

// Case I10: a monitor that accepts and closes each stream sees about ten tries in half a minute.
func TestStream_AcceptAndCloseIsMetWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.serve = refuseAfterFirst(m, status.Error(codes.Unavailable, "shutting down"))
		m.start(t)
		r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
		req := request()
		req.LeaseTTL = time.Hour
		mustStart(t, r, req)
		after(30 * time.Second)
		if n := len(m.streams()); n < 7 || n > 10 {
			t.Errorf("%d tries in 30 s, want 7 to 10", n)
		}
		// Renewals do not shorten it.
		before := len(m.streams())
		for range 300 {
			mustStart(t, r, req)
			after(100 * time.Millisecond)
		}
		if n := len(m.streams()) - before; n > 8 {
			t.Errorf("%d tries in 30 s of renewals, want at most 8", n)
		}
	})
}

// Cases H5 and I10: after a restart of the monitor the engines come back spread, and continue their sequence.
func TestStream_ReconnectsOfAFleetAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const fleet = 120
		m := &monitor{}
		restart := make(chan struct{})
		var restarted atomic.Bool
		m.serve = func(stream reportStream) error {
			if !restarted.Load() {
				m.receive(stream)
				<-restart
				return status.Error(codes.Unavailable, "restarting")
			}
			return m.drain(stream)
		}
		m.start(t)
		for range fleet {
			r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
			mustStart(t, r, request())
		}
		after(8 * time.Second)
		restarted.Store(true)
		close(restart)
		at := time.Now()
		after(1100 * time.Millisecond)
		opened := m.streams()
		if len(opened) != 2*fleet {
			t.Fatalf("%d streams, want %d: every engine is back within the freshness window", len(opened), 2*fleet)
		}
		buckets := map[int64]int{}
		for _, o := range opened[fleet:] {
			d := o.Sub(at)
			if d < backoffMin {
				t.Errorf("an engine came back after %v", d)
			}
			buckets[d.Milliseconds()/100]++
		}
		for b, n := range buckets {
			if n > fleet/3 {
				t.Errorf("%d of %d engines came back in the same tenth of a second (%d00 ms)", n, fleet, b)
			}
		}
		last := map[string]uint64{}
		for _, a := range m.arrivals() {
			if a.report.SequenceId <= last[a.report.SourceInstanceId] {
				t.Fatalf("sequence went from %d to %d", last[a.report.SourceInstanceId], a.report.SequenceId)
			}
			last[a.report.SourceInstanceId] = a.report.SequenceId
		}
		if len(last) != fleet {
			t.Errorf("%d source instances, want %d", len(last), fleet)
		}
	})
}

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

// A peer that vanished without closing is noticed by keepalive.
func TestStream_SilentlyDeadPeerIsRedialled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.start(t)
		frozen := make(chan struct{})
		var dials atomic.Int32
		r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				conn, err := m.listener.DialContext(ctx)
				if err == nil && dials.Add(1) == 1 {
					conn = &freezingConn{Conn: conn, frozen: frozen, closed: make(chan struct{})}
				}
				return conn, err
			}),
		}})
		req := request()
		req.LeaseTTL = time.Minute
		mustStart(t, r, req)
		after(2 * time.Second)
		close(frozen)
		at := time.Now()
		after(20 * time.Second)
		opened := m.streams()
		if len(opened) != 2 {
			t.Fatalf("%d streams, want a second one within 20 s", len(opened))
		}
		if d := opened[1].Sub(at); d > keepaliveTime+keepaliveTimeout+time.Second {
			t.Errorf("redialled after %v", d)
		}
	})
}

// freezingConn forwards nothing in either direction once frozen is closed, and says nothing of it.
type freezingConn struct {
	net.Conn
	frozen, closed chan struct{}
	once           sync.Once
}

func (c *freezingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case <-c.frozen:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (c *freezingConn) Write(b []byte) (int, error) {
	select {
	case <-c.frozen:
		return len(b), nil
	default:
		return c.Conn.Write(b)
	}
}

func (c *freezingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// Stopping does not wait for a peer that takes nothing, nor for a dial that does not end.
func TestRun_StopIsBounded(t *testing.T) {
	unread := func(stream reportStream) error { <-stream.Context().Done(); return nil }
	for _, tc := range []struct {
		name  string
		serve func(reportStream) error
		dial  func(m *monitor) grpc.DialOption
	}{
		{"streaming", nil, (*monitor).dial},
		{"a monitor that reads nothing", unread, (*monitor).dial},
		{"dialling a black hole", nil, func(*monitor) grpc.DialOption {
			return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() })
		}},
		{"a server that never speaks", nil, func(*monitor) grpc.DialOption {
			silent := bufconn.Listen(1 << 10)
			return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return silent.DialContext(ctx) })
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &monitor{serve: tc.serve}
				m.start(t)
				r, err := New(Options{Sample: wide, DialOptions: []grpc.DialOption{tc.dial(m)}})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- r.Run(ctx) }()
				synctest.Wait()
				mustStart(t, r, request())
				after(4500 * time.Millisecond)
				cancel()
				at := time.Now()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if d := time.Since(at); d > 100*time.Millisecond {
					t.Errorf("stopped after %v", d)
				}
				if s := r.Stats(); len(s.Targets) != 0 {
					t.Errorf("targets %+v are left", s.Targets)
				}
			})
		})
	}
}
