package reporter

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
