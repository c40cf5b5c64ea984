package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

func TestNewFleet_ZeroOptionsAreUsable(t *testing.T) {
	f, err := NewFleet(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(f.engines) != DefaultWorkers || f.opts.Ranks != DefaultRanks || f.opts.Host != DefaultHost {
		t.Errorf("%d engines, options %+v", len(f.engines), f.opts)
	}
}

func TestNewFleet_RefusesOptionsAndNamesThem(t *testing.T) {
	for _, tc := range []struct {
		opts Options
		want string
	}{
		{Options{Workers: -1}, "Workers is -1"},
		{Options{Workers: MaxWorkers + 1}, "Workers"},
		{Options{Ranks: -1}, "Ranks is -1"},
		{Options{BasePort: -1}, "BasePort is -1"},
		{Options{BasePort: 65533, Workers: 4}, "65535"},
		{Options{BasePort: 65000, Workers: 100, Ranks: 5, Transport: TransportZMQ}, "500 ranks"},
		{Options{Transport: "udp"}, "push, zmq, mixed"},
		{Options{Workers: MaxWorkers, Ranks: 8, Transport: TransportMixed}, "MaxSockets"},
		{Options{Host: "localhost"}, `Host is "localhost"`},
		{Options{Load: -1}, "Load is -1"},
		{Options{Cycle: time.Millisecond}, "Cycle is 1ms"},
		{Options{StartingFor: -1}, "StartingFor"},
		{Options{Roles: []load.Role{load.RoleUnspecified}}, "Roles"},
	} {
		if _, err := NewFleet(tc.opts); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: error %v, want one with %q", tc.opts, err, tc.want)
		}
	}
}

func TestParseRoles(t *testing.T) {
	const p, d, r = load.RolePrefill, load.RoleDecode, load.RoleRegular
	for _, tc := range []struct {
		mix  string
		want []load.Role
	}{
		{"plain", []load.Role{r}},
		{"prefill,decode", []load.Role{p, d}},
		{"prefill:1, decode:3", []load.Role{p, d, d, d}},
		{"", nil}, {"prefil", nil}, {"decode:0", nil}, {"decode:x", nil}, {"decode:-1", nil}, {"decode:99999", nil}, {"plain,", nil},
	} {
		got, err := ParseRoles(tc.mix)
		if (err != nil) != (tc.want == nil) || !slices.Equal(got, tc.want) {
			t.Errorf("ParseRoles(%q) = %v, %v; want %v", tc.mix, got, err, tc.want)
		}
	}
}
