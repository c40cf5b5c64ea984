package client

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

func TestOptions_Request(t *testing.T) { // W5
	for _, tc := range []struct {
		name string
		o    Options
		want loadmonitorpb.WatchRequest_builder
		err  string
	}{
		{name: "zero", want: loadmonitorpb.WatchRequest_builder{Ranks: true}},
		{name: "all", o: Options{
			Filter:       Filter{IDs: []string{"a"}, Models: []string{"m"}, Roles: []load.Role{load.RolePrefill, load.RoleRegular}, Zones: []string{"z"}},
			WithoutRanks: true, MinInterval: 1500 * time.Microsecond, FullOnly: true,
		}, want: loadmonitorpb.WatchRequest_builder{
			Filter: loadmonitorpb.Filter_builder{Ids: []string{"a"}, Models: []string{"m"}, Zones: []string{"z"},
				Roles: []loadmonitorpb.Role{loadmonitorpb.Role_ROLE_PREFILL, loadmonitorpb.Role_ROLE_REGULAR}}.Build(),
			MinIntervalMs: 2, FullOnly: true,
		}},
		{name: "unspecified role", o: Options{Filter: Filter{Roles: []load.Role{load.RoleUnspecified}}}, err: "unspecified role"},
		{name: "negative interval", o: Options{MinInterval: -1}, err: "MinInterval is -1ns"},
		{name: "interval out of range", o: Options{MinInterval: 50 * 24 * time.Hour}, err: "MinInterval is 1200h"},
		{name: "negative timeout", o: Options{LinkTimeout: -time.Second}, err: "LinkTimeout is -1s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := New("127.0.0.1:1", tc.o)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v: want one that says %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want.Build(), c.request, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNew_RefusesATargetThatGRPCRefuses(t *testing.T) {
	if _, err := New("a b://%%", Options{}); err == nil || !strings.Contains(err.Error(), "a b://%%") {
		t.Errorf("got %v", err)
	}
}
