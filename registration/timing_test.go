package registration

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

var defaultTiming = timing{interval: DefaultReportInterval, lease: DefaultLease, timeout: DefaultTimeout, slow: DefaultSlowRetry}

func TestTiming_Granted(t *testing.T) {
	const s = time.Second
	for _, tt := range []struct {
		name             string
		leaseMs, renewMs int64
		lease, renew     time.Duration
		ok               bool
	}{
		{"as asked", 15000, 5000, 15 * s, 5 * s, true},
		{"nothing told", 0, 0, 15 * s, 5 * s, true},
		{"lease only", 9000, 0, 9 * s, 3 * s, true},
		{"renewal only", 0, 4000, 15 * s, 4 * s, true},
		{"renewal later than a third", 15000, 14000, 15 * s, 5 * s, true},
		{"longer than asked", 3600_000, 1200_000, 15 * s, 5 * s, true},
		{"renewal after the lease", 6000, 9000, 6 * s, 2 * s, true},
		{"renewal under the interval", 15000, 200, 15 * s, 5 * s, true},
		{"a third is under the interval", 2400, 800, 2400 * time.Millisecond, 1700 * time.Millisecond, true},
		{"lease at the interval", 1000, 333, s, s, false},
		{"lease under the interval", 10, 3, 10 * time.Millisecond, 505 * time.Millisecond, false},
	} {
		lease, renew, ok := defaultTiming.granted(tt.leaseMs, tt.renewMs)
		if lease != tt.lease || renew != tt.renew || ok != tt.ok {
			t.Errorf("%s: lease %v, renew %v, %v; want %v, %v, %v", tt.name, lease, renew, ok, tt.lease, tt.renew, tt.ok)
		}
	}
}

// Renewals stay above the report interval, or they starve the reports, and come before the engine's limit.
func TestTiming_RenewalStaysBetweenIntervalAndLimit(t *testing.T) {
	for _, tt := range []struct{ interval, renew time.Duration }{
		{time.Second, 5 * time.Second}, {4900 * time.Millisecond, 5 * time.Second}, {time.Second, 1200 * time.Millisecond}, {time.Millisecond, time.Second},
	} {
		d := timing{interval: tt.interval}
		least, most := time.Hour, time.Duration(0)
		for range 2000 {
			got := d.renewIn(tt.renew)
			least, most = min(least, got), max(most, got)
		}
		if least <= tt.interval || most >= tt.renew || least == most {
			t.Errorf("interval %v, limit %v: renewals between %v and %v", tt.interval, tt.renew, least, most)
		}
	}
}

func TestTiming_Pause(t *testing.T) {
	for _, tt := range []struct {
		failures    int
		young       bool
		least, most time.Duration
	}{
		{0, true, 200 * time.Millisecond, 700 * time.Millisecond},
		{1, true, 200 * time.Millisecond, 900 * time.Millisecond},
		{2, true, 400 * time.Millisecond, 1300 * time.Millisecond},
		{50, true, 500 * time.Millisecond, 1500 * time.Millisecond},
		{3, false, 800 * time.Millisecond, 2100 * time.Millisecond},
		{50, false, 2500 * time.Millisecond, 5500 * time.Millisecond},
	} {
		for range 2000 {
			if got := pause(tt.failures, tt.young); got < tt.least || got >= tt.most {
				t.Errorf("pause(%d, %v) = %v, want %v to %v", tt.failures, tt.young, got, tt.least, tt.most)
				break
			}
		}
	}
}

func TestNew_RefusesOptionsByNameAndValue(t *testing.T) {
	for _, tt := range []struct {
		name string
		o    Options
		want []string
	}{
		{"no sink", Options{Listen: listenLoopback}, []string{"Sink"}},
		{"no listener", Options{Sink: newSink()}, []string{"listen address", "port"}},
		{"listener without its port", Options{Sink: newSink(), Listen: netip.MustParseAddrPort("127.0.0.1:0")}, []string{"127.0.0.1:0"}},
		{"interval at a third of the lease", Options{Sink: newSink(), Listen: listenLoopback, ReportInterval: 5 * time.Second}, []string{"5s", "15s"}},
		{"short lease", Options{Sink: newSink(), Listen: listenLoopback, Lease: 2 * time.Second}, []string{"1s", "2s"}},
		{"probe interval without a unit (case K6)", Options{Sink: newSink(), Listen: listenLoopback, ProbeInterval: 10}, []string{"probe interval", "10ns"}},
		{"negative timeout", Options{Sink: newSink(), Listen: listenLoopback, Timeout: -1}, []string{"timeout", "-1ns"}},
		{"lease without a unit (case K6)", Options{Sink: newSink(), Listen: listenLoopback, Lease: 15}, []string{"lease", "15ns"}},
		{"wildcard advertised", Options{Sink: newSink(), Listen: listenLoopback, AdvertiseIP: netip.IPv4Unspecified()}, []string{"0.0.0.0"}},
		{"no workers allowed", Options{Sink: newSink(), Listen: listenLoopback, MaxWorkers: -1}, []string{"max workers -1"}},
		{"name of a source", Options{Sink: newSink(), Listen: listenLoopback, Discoverers: map[string]Discoverer{"api": nil}}, []string{`"api"`}},
		{"more workers than allowed", Options{Sink: newSink(), Listen: listenLoopback, MaxWorkers: 1, Static: []Spec{{URL: "a:1"}, {URL: "a:2"}}}, []string{"2 workers", "at most 1"}},
	} {
		_, err := New(tt.o)
		if err == nil {
			t.Errorf("%s: accepted", tt.name)
			continue
		}
		for _, w := range tt.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: error %q does not say %q", tt.name, err, w)
			}
		}
	}
}

func TestAdvertise_To(t *testing.T) {
	for _, tt := range []struct {
		name          string
		listen        string
		ip            string
		port          uint16
		local, remote string
		want          string // address, or part of the reason
	}{
		{"loopback both", "127.0.0.1:5", "", 0, "127.0.0.1", "127.0.0.2", "127.0.0.1:5"},
		{"loopback listener, remote engine", "127.0.0.1:5", "", 0, "10.9.0.1", "10.9.0.5", "the gRPC listener 127.0.0.1:5 is on loopback"},
		{"loopback listener, advertised", "127.0.0.1:5", "10.9.0.1", 0, "10.9.0.1", "10.9.0.5", "the gRPC listener 127.0.0.1:5 is on loopback"},
		{"loopback IPv6 listener, remote engine", "[::1]:5", "", 0, "fd00::1", "fd00::5", "the gRPC listener [::1]:5 is on loopback"},
		{"loopback advertised", "0.0.0.0:5", "127.0.0.1", 0, "10.9.0.1", "10.9.0.5", "the advertise address 127.0.0.1 is loopback"},
		{"loopback advertised to a local engine", "0.0.0.0:5", "127.0.0.1", 0, "127.0.0.1", "127.0.0.1", "127.0.0.1:5"},
		{"wildcard", "0.0.0.0:5", "", 0, "10.9.0.1", "10.9.0.5", "10.9.0.1:5"},
		{"wildcard, local engine", "[::]:5", "", 0, "127.0.0.1", "127.0.0.1", "127.0.0.1:5"},
		{"IPv6 (case L1)", "[::]:5", "", 0, "fd00::1", "fd00::5", "[fd00::1]:5"},
		{"IPv4 wildcard, IPv6 engine", "0.0.0.0:5", "", 0, "fd00::1", "fd00::5", "IPv4 only"},
		{"specific listener", "10.9.0.1:5", "", 0, "10.8.0.1", "10.8.0.5", "10.9.0.1:5"},
		{"address and port", "0.0.0.0:5", "192.0.2.1", 7, "10.9.0.1", "10.9.0.5", "192.0.2.1:7"},
		{"port only", "0.0.0.0:5", "", 7, "10.9.0.1", "10.9.0.5", "10.9.0.1:7"},
		{"link-local way", "[::]:5", "", 0, "fe80::1%eth0", "fe80::5", "link-local"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := Options{Sink: newSink(), Listen: netip.MustParseAddrPort(tt.listen), AdvertisePort: tt.port}
			if tt.ip != "" {
				o.AdvertiseIP = netip.MustParseAddr(tt.ip)
			}
			a := mustNew(t, o).engines.advertise
			a.route = routed(tt.local, tt.remote)
			got, err := a.to(t.Context(), "engine:1", nil)
			var blocked *unadvertisedError
			switch {
			case err == nil && got.String() != tt.want:
				t.Errorf("got %v, want %s", got, tt.want)
			case err != nil && (!errors.As(err, &blocked) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}

func TestRoute_LoopbackEndsAtBothAddresses(t *testing.T) {
	for _, origin := range []string{"127.0.0.1:9", "localhost:9"} {
		local, remote, err := routeOver(dialerOf(nil))(t.Context(), origin)
		if err != nil || !local.IsLoopback() || !remote.IsLoopback() {
			t.Errorf("%s: from %v to %v, %v", origin, local, remote, err)
		}
	}
}

func routed(local, remote string) func(context.Context, string) (netip.Addr, netip.Addr, error) {
	return func(context.Context, string) (netip.Addr, netip.Addr, error) {
		return netip.MustParseAddr(local), netip.MustParseAddr(remote), nil
	}
}
