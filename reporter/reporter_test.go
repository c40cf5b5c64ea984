package reporter

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/loadmonitor/loadmonitor/load"
)

func TestNew_RefusesOptionsAndNamesThem(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts Options
		want string
	}{
		{"no sampler", Options{}, "Options.Sample"},
		{"unknown role", Options{Sample: idle, Role: 77}, "Options.Role"},
		{"model", Options{Sample: idle, Model: "\xff"}, "Options.Model"},
		{"zone", Options{Sample: idle, Zone: "\xff"}, "Options.Zone"},
		{"negative staleness", Options{Sample: idle, StaleAfter: -1}, "Options.StaleAfter"},
		{"negative bound", Options{Sample: idle, MaxTargets: -1}, "Options.MaxTargets"},
	} {
		if _, err := New(tc.opts); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one that names %s", tc.name, err, tc.want)
		}
	}
	r, err := New(Options{Sample: idle})
	if err != nil {
		t.Fatal(err)
	}
	other, err := New(Options{Sample: idle})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := r.SourceInstance(), other.SourceInstance(); a == "" || a == b {
		t.Errorf("source instances %q and %q: want two that differ", a, b)
	}
}

func TestStartReporting_Refusals(t *testing.T) {
	change := func(f func(*StartRequest)) StartRequest { req := request(); f(&req); return req }
	for _, tc := range []struct {
		name string
		req  StartRequest
		want error
	}{
		{"no address", change(func(r *StartRequest) { r.Target = netip.AddrPort{} }), ErrInvalid},
		{"unspecified address", change(func(r *StartRequest) { r.Target = netip.MustParseAddrPort("0.0.0.0:1") }), ErrInvalid},
		{"unspecified IPv6", change(func(r *StartRequest) { r.Target = netip.MustParseAddrPort("[::]:1") }), ErrInvalid},
		{"multicast", change(func(r *StartRequest) { r.Target = netip.MustParseAddrPort("224.0.0.1:1") }), ErrInvalid},
		{"zone", change(func(r *StartRequest) { r.Target = netip.MustParseAddrPort("[fe80::1%eth0]:1") }), ErrInvalid},
		{"port 0", change(func(r *StartRequest) { r.Target = netip.MustParseAddrPort("127.0.0.1:0") }), ErrInvalid},
		{"no interval", change(func(r *StartRequest) { r.ReportInterval = 0 }), ErrInvalid},
		{"negative interval", change(func(r *StartRequest) { r.ReportInterval = -time.Second }), ErrInvalid},
		{"endless interval", change(func(r *StartRequest) { r.ReportInterval = 2 * MaxInterval }), ErrInvalid},
		{"negative lease", change(func(r *StartRequest) { r.LeaseTTL = -1 }), ErrInvalid},
		{"endless lease", change(func(r *StartRequest) { r.LeaseTTL = 2 * MaxLease }), ErrInvalid},
		{"no worker", change(func(r *StartRequest) { r.WorkerAddr = "" }), ErrInvalid},
		{"worker is not UTF-8", change(func(r *StartRequest) { r.WorkerAddr = "http://\xff:1" }), ErrInvalid},
		{"another origin", change(func(r *StartRequest) { r.WorkerAddr = "http://127.0.0.2:30001" }), ErrTargetOwned},
		{"another origin, target spelt as mapped IPv6", change(func(r *StartRequest) {
			r.WorkerAddr = "http://127.0.0.2:30001"
			r.Target = netip.MustParseAddrPort("[::ffff:127.0.0.1]:50061")
		}), ErrTargetOwned},
		{"one target too many", change(func(r *StartRequest) { r.Target = netip.MustParseAddrPort("127.0.0.1:3") }), ErrTooManyTargets},
		{"a renewal at the bound", request(), nil},
		{"the same origin spelt otherwise", change(func(r *StartRequest) { r.WorkerAddr = "127.0.0.2:30000/" }), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &monitor{}
				m.start(t)
				r := run(t, Options{Sample: idle, MaxTargets: 2, DialOptions: []grpc.DialOption{m.dial()}})
				mustStart(t, r, request())
				mustStart(t, r, change(func(r *StartRequest) { r.Target = netip.MustParseAddrPort("[fd00::5]:50061") }))
				if _, err := r.StartReporting(tc.req); !errors.Is(err, tc.want) {
					t.Errorf("error %v, want %v", err, tc.want)
				}
			})
		})
	}
}

func TestStartReporting_OnlyWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := New(Options{Sample: idle})
		if err != nil {
			t.Fatal(err)
		}
		refused := func(when string) {
			t.Helper()
			if _, err := r.StartReporting(request()); !errors.Is(err, ErrNotRunning) {
				t.Errorf("%s: error %v, want %v", when, err, ErrNotRunning)
			}
		}
		refused("before Run")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
		refused("after Run")
		if err := r.Run(ctx); !errors.Is(err, ErrAlreadyRunning) {
			t.Errorf("second Run: %v, want %v", err, ErrAlreadyRunning)
		}
	})
}

// A target is free again once its owner's lease ran out, also while its stream is stuck in a dial.
func TestStartReporting_TargetIsFreeAfterTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.start(t)
		r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
		mustStart(t, r, request())
		other := request()
		other.WorkerAddr = "http://127.0.0.3:30000"
		after(15*time.Second - time.Millisecond)
		if _, err := r.StartReporting(other); !errors.Is(err, ErrTargetOwned) {
			t.Errorf("just before: %v", err)
		}
		after(time.Millisecond)
		mustStart(t, r, other)
		after(time.Second)
		if got := m.last(t).Worker.WorkerAddr; got != other.WorkerAddr {
			t.Errorf("reports say %s, want %s", got, other.WorkerAddr)
		}
		if s := r.Stats(); len(s.Targets) != 1 || s.Targets[0].State != Streaming {
			t.Errorf("targets %+v", s.Targets)
		}
	})
}

// The lease's timer may fire beside a renewal, and the task of an old lease may end beside a new one.
func TestExpire_LateTimerAndLateEndingChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.start(t)
		r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}})
		mustStart(t, r, request())
		old := r.targets[target1]
		after(5 * time.Second)
		old.expire() // as if it had waited for the lock while the renewal held it
		after(5 * time.Second)
		if s := r.Stats(); len(s.Targets) != 1 || s.Targets[0].Sent != 11 {
			t.Errorf("stats %+v after a late timer", s)
		}
		after(5 * time.Second)
		mustStart(t, r, request()) // a new lease
		r.remove(old)
		after(time.Second)
		if s := r.Stats(); len(s.Targets) != 1 || s.Targets[0].Sent != 2 {
			t.Errorf("stats %+v after a late ending", s)
		}
	})
}

// countingHandler counts log lines by level.
type countingHandler struct {
	slog.Handler
	warn, info atomic.Int32
}

func (h *countingHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *countingHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		h.warn.Add(1)
	} else {
		h.info.Add(1)
	}
	return nil
}

func TestLog_OneLinePerEpisodeOfTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		var healthy atomic.Bool
		m.serve = func(stream reportStream) error {
			if healthy.Load() {
				return m.drain(stream)
			}
			m.receive(stream)
			return status.Error(codes.Unavailable, "starting")
		}
		m.start(t)
		lines := &countingHandler{Handler: slog.DiscardHandler}
		r := run(t, Options{Sample: idle, DialOptions: []grpc.DialOption{m.dial()}, Logger: slog.New(lines)})
		req := request()
		req.LeaseTTL = time.Hour
		mustStart(t, r, req)
		after(time.Minute)
		if w, i := lines.warn.Load(), lines.info.Load(); w != 1 || i != 0 {
			t.Errorf("%d warnings and %d notices in a minute of trouble, want 1 and 0", w, i)
		}
		healthy.Store(true)
		after(time.Minute)
		if w, i := lines.warn.Load(), lines.info.Load(); w != 1 || i != 1 {
			t.Errorf("%d warnings and %d notices after recovery, want 1 and 1", w, i)
		}
	})
}

func TestStats_ListTargetsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &monitor{}
		m.start(t)
		r := run(t, Options{Sample: idle, Role: load.RoleDecode, DialOptions: []grpc.DialOption{m.dial()}})
		for _, target := range []string{"127.0.0.9:1", "127.0.0.1:2", "[fd00::5]:1", "127.0.0.1:1"} {
			req := request()
			req.Target = netip.MustParseAddrPort(target)
			mustStart(t, r, req)
		}
		after(5 * time.Second)
		s := r.Stats()
		if !slices.IsSortedFunc(s.Targets, func(a, b TargetStats) int { return a.Target.Compare(b.Target) }) || len(s.Targets) != 4 {
			t.Errorf("targets %+v, want 4 in order", s.Targets)
		}
		for _, target := range s.Targets {
			if target.LeaseMs != 10_000 || target.IntervalMs != 1000 || target.WorkerAddr != request().WorkerAddr || target.Sent != 6 {
				t.Errorf("target %+v", target)
			}
		}
	})
}
