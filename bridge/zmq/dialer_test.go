package zmq

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// dialerAlone is a dialer whose clock and start are in the hands of a test: nothing runs but step.
func dialerAlone(t testing.TB, o Options) (*Bridge, *dialer) {
	t.Helper()
	o.Sink = newRecorder()
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	b.dialer.slots(4)
	return b, b.dialer
}

func someRank(b *Bridge, host string) *rank {
	return &rank{target: Target{WorkerID: "w", Host: host, Port: 1}, owner: b.owners[0]}
}

// Dials without much hope are paced, others are not.
func TestDialer_HopelessDialsArePaced(t *testing.T) {
	for _, c := range []struct {
		class  dialClass
		second int // dials in the first second of 10,000 that are due
	}{{classFresh, 10_000}, {classSilent, 32}, {classDead, 400}} {
		b, d := dialerAlone(t, Options{})
		d.slots(10_000)
		for range 10_000 {
			d.add(&dial{rank: someRank(b, "127.0.0.1"), class: c.class, due: time.Second})
		}
		started, now := 0, time.Second
		for now <= 2*time.Second {
			start, next := d.step(now)
			started += len(start)
			if next <= 0 {
				t.Fatalf("class %d: look again in %v", c.class, next)
			}
			now += next
		}
		if want := c.second + perRound(1)[c.class]; started < c.second || started > want {
			t.Errorf("class %d: %d dials in a second, want %d to %d", c.class, started, c.second, want)
		}
	}
}

// A class that has all its dials under way leaves the other ones theirs.
func TestDialer_BlackHolesHoldUpNobody(t *testing.T) {
	b, d := dialerAlone(t, Options{})
	for range 100 {
		d.add(&dial{rank: someRank(b, "127.0.0.1"), class: classDead, due: 1})
	}
	start, _ := d.step(time.Second)
	if len(start) != 4 {
		t.Fatalf("%d dials of dead ranks under way, want 4", len(start))
	}
	d.add(&dial{rank: someRank(b, "127.0.0.1"), class: classFresh, due: 1})
	if start, _ = d.step(time.Second); len(start) != 1 {
		t.Errorf("%d dials of a fresh rank started, want 1", len(start))
	}
}

// All dials of one host wait for one look-up, and names that failed take no place of others.
func TestDialer_OneLookUpPerHost(t *testing.T) {
	b, d := dialerAlone(t, Options{Resolve: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1"), netip.MustParseAddr("fd00::1")}, nil
	}})
	for range 8 {
		d.hold("pod.example")
		d.add(&dial{rank: someRank(b, "pod.example"), due: 1})
	}
	start, _ := d.step(time.Second)
	if len(start) != 1 {
		t.Fatalf("%d look-ups, want 1", len(start))
	}
	start[0](t.Context())
	if start, _ = d.step(time.Second); len(start) != 4 {
		t.Errorf("%d dials after the look-up, want the 4 that have a slot", len(start))
	}
	for _, want := range d.ready[classFresh] {
		if want.addrs[0].String() != "10.0.0.1" {
			t.Errorf("address %v, want it as IPv4", want.addrs[0])
		}
	}
	for range 8 {
		d.drop("pod.example")
	}
	if len(d.names) != 0 {
		t.Errorf("%d names are remembered without a target", len(d.names))
	}
}

// Case L3: of names that do not answer only a few are looked up at a time, apart from those that do.
func TestDialer_DeadNamesWaitApart(t *testing.T) {
	b, d := dialerAlone(t, Options{Resolve: func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no answer") }})
	for range 2 {
		for i := range 4 {
			host := string(rune('a'+i)) + ".example"
			d.hold(host)
			d.add(&dial{rank: someRank(b, host), due: 1})
		}
		start, _ := d.step(time.Second)
		for _, f := range start {
			f(t.Context())
		}
	}
	d.lookUp = [2]int{1, 0} // dead names have no slot left
	d.hold("good.example")
	d.add(&dial{rank: someRank(b, "a.example"), due: 1})
	d.add(&dial{rank: someRank(b, "good.example"), due: 1})
	if start, _ := d.step(time.Second); len(start) != 1 {
		t.Errorf("%d look-ups, want that of the name that has not failed", len(start))
	}
}

// The look-ups of names in use are paced, however many there are.
func TestDialer_NamesAreRefreshedAtAPace(t *testing.T) {
	for _, c := range []struct{ names, perMinute int }{{2, 24}, {1000, 20 * 60}} {
		b, d := dialerAlone(t, Options{Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
		}})
		b.start = time.Now()
		for i := range c.names {
			d.hold(strings.Repeat("x", i/26+1) + string(rune('a'+i%26)))
		}
		lookUps := 0
		for now := instant(0); now < time.Minute; now += refreshTick {
			for start, _ := d.step(now); len(start) > 0; start, _ = d.step(now) {
				lookUps += len(start)
				for _, f := range start {
					f(t.Context())
				}
			}
		}
		if lookUps < c.perMinute/2 || lookUps > c.perMinute*3/2 {
			t.Errorf("%d names: %d look-ups in a minute, want about %d", c.names, lookUps, c.perMinute)
		}
	}
}

// A removed rank is dialled no more, wherever its dial waits.
func TestDialer_RemovedRanksAreForgotten(t *testing.T) {
	b, d := dialerAlone(t, Options{})
	r := someRank(b, "127.0.0.1")
	d.add(&dial{rank: r, due: 1})
	d.add(&dial{rank: r, class: classDead, due: 1})
	r.removed.Store(true)
	if start, _ := d.step(time.Second); len(start) != 0 {
		t.Errorf("%d dials of a removed rank", len(start))
	}
}

// A dial that waits behind others can be taken back, one that has begun cannot.
func TestDialer_AbandonedDialsAreForgotten(t *testing.T) {
	b, d := dialerAlone(t, Options{})
	d.slots(100)
	var wants []*dial
	for range 20 {
		want := &dial{rank: someRank(b, "127.0.0.1"), class: classSilent, due: 1}
		wants = append(wants, want)
		d.add(want)
	}
	started, _ := d.step(time.Second)
	abandoned := 0
	for _, want := range wants {
		if d.abandon(want) {
			abandoned++
		}
	}
	if len(started) != perRound(1)[classSilent] || abandoned != 20-len(started) {
		t.Errorf("%d of 20 dials begun, %d taken back", len(started), abandoned)
	}
	if started, _ = d.step(time.Minute); len(started) != 0 {
		t.Errorf("%d dials begun that were taken back", len(started))
	}
}

// Case K8: the time between dials grows to a documented ceiling, with chance in it.
func TestBridge_BackoffGrowsToItsCeiling(t *testing.T) {
	t.Parallel()
	b, _ := dialerAlone(t, Options{})
	for fails, want := range map[int]time.Duration{
		0: retryMin, 1: retryMin, 2: 2 * retryMin, 3: 4 * retryMin, 4: 8 * retryMin, 5: defaultRetryMax, 255: defaultRetryMax,
	} {
		seen := make(map[time.Duration]bool)
		for range 20 {
			d := b.backoff(fails)
			seen[d] = true
			if d > want || d < want*3/4 {
				t.Errorf("after %d failures %v, want %v less at most a quarter", fails, d, want)
			}
		}
		if len(seen) < 2 {
			t.Errorf("after %d failures always the same", fails)
		}
	}
}

// The dialer sleeps until something is due.
func TestDialer_RunStartsWhatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looked := make(chan instant, 1)
		var b *Bridge
		b, d := dialerAlone(t, Options{Resolve: func(context.Context, string) ([]netip.Addr, error) {
			looked <- b.now()
			return nil, errors.New("no answer")
		}})
		ctx, cancel := context.WithCancel(t.Context())
		b.running.Go(func() { d.run(ctx) })
		synctest.Wait()
		d.hold("pod.example")
		due := b.now() + 1234*time.Millisecond
		d.add(&dial{rank: someRank(b, "pod.example"), due: due})
		if at := <-looked; at < due || at > due+time.Millisecond {
			t.Errorf("looked up at %v, want %v", at, due)
		}
		cancel()
		b.running.Wait()
	})
}
