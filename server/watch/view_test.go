package watch

import (
	"fmt"
	"strings"
	"testing"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

func filtered(b loadmonitorpb.Filter_builder) *loadmonitorpb.WatchRequest {
	return loadmonitorpb.WatchRequest_builder{Filter: b.Build(), Ranks: true}.Build()
}

func TestView_MatchesEachListThatIsNotEmpty(t *testing.T) {
	t.Parallel()
	w := load.Worker{ID: "w1", Role: load.RoleDecode, Models: []string{"m1", "m2"}, Zone: "z1"}
	decode, prefill := loadmonitorpb.Role_ROLE_DECODE, loadmonitorpb.Role_ROLE_PREFILL
	many := func(s string) (list []string) {
		for i := range 20 {
			list = append(list, fmt.Sprint("x", i))
		}
		return append(list, s)
	}
	for _, tc := range []struct {
		name string
		f    loadmonitorpb.Filter_builder
		want bool
	}{
		{"empty", loadmonitorpb.Filter_builder{}, true},
		{"its id", loadmonitorpb.Filter_builder{Ids: []string{"w0", "w1"}}, true},
		{"its id among many", loadmonitorpb.Filter_builder{Ids: many("w1")}, true},
		{"another id", loadmonitorpb.Filter_builder{Ids: []string{"w2"}}, false},
		{"many other ids", loadmonitorpb.Filter_builder{Ids: many("w2")}, false},
		{"one of its models", loadmonitorpb.Filter_builder{Models: []string{"m2", "m3"}}, true},
		{"another model", loadmonitorpb.Filter_builder{Models: []string{"m3"}}, false},
		{"its role", loadmonitorpb.Filter_builder{Roles: []loadmonitorpb.Role{prefill, decode}}, true},
		{"another role", loadmonitorpb.Filter_builder{Roles: []loadmonitorpb.Role{prefill}}, false},
		{"its zone", loadmonitorpb.Filter_builder{Zones: []string{"z1"}}, true},
		{"no zone", loadmonitorpb.Filter_builder{Zones: []string{""}}, false},
		{"all four", loadmonitorpb.Filter_builder{Ids: []string{"w1"}, Models: []string{"m1"}, Roles: []loadmonitorpb.Role{decode}, Zones: []string{"z1"}}, true},
		{"three of four", loadmonitorpb.Filter_builder{Ids: []string{"w1"}, Models: []string{"m1"}, Roles: []loadmonitorpb.Role{decode}, Zones: []string{"z2"}}, false},
	} {
		if got := mustView(t, filtered(tc.f)).matches(&w); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestView_NameStandsForFilterAndOptions(t *testing.T) {
	t.Parallel()
	roles := []loadmonitorpb.Role{loadmonitorpb.Role_ROLE_DECODE, loadmonitorpb.Role_ROLE_PREFILL}
	same := [][2]*loadmonitorpb.WatchRequest{
		{loadmonitorpb.WatchRequest_builder{}.Build(), loadmonitorpb.WatchRequest_builder{Filter: &loadmonitorpb.Filter{}}.Build()},
		{filtered(loadmonitorpb.Filter_builder{Ids: []string{"b", "a", "a"}}), filtered(loadmonitorpb.Filter_builder{Ids: []string{"a", "b"}})},
		{filtered(loadmonitorpb.Filter_builder{Roles: roles}), filtered(loadmonitorpb.Filter_builder{Roles: []loadmonitorpb.Role{roles[1], roles[0], roles[1]}})},
		// The interval says when frames come, not what they hold.
		{loadmonitorpb.WatchRequest_builder{MinIntervalMs: 500}.Build(), loadmonitorpb.WatchRequest_builder{}.Build()},
	}
	for i, p := range same {
		if a, b := mustView(t, p[0]).name, mustView(t, p[1]).name; a != b {
			t.Errorf("pair %d: %s and %s, want one name", i, a, b)
		}
	}
	different := []*loadmonitorpb.WatchRequest{
		loadmonitorpb.WatchRequest_builder{}.Build(),
		loadmonitorpb.WatchRequest_builder{Ranks: true}.Build(),
		loadmonitorpb.WatchRequest_builder{FullOnly: true}.Build(),
		loadmonitorpb.WatchRequest_builder{NoRefreshMarks: true}.Build(),
		filtered(loadmonitorpb.Filter_builder{Ids: []string{"a"}}),
		filtered(loadmonitorpb.Filter_builder{Models: []string{"a"}}),
		filtered(loadmonitorpb.Filter_builder{Zones: []string{"a"}}),
		filtered(loadmonitorpb.Filter_builder{Zones: []string{""}}),
		filtered(loadmonitorpb.Filter_builder{Ids: []string{"ab", "c"}}),
		filtered(loadmonitorpb.Filter_builder{Ids: []string{"a", "bc"}}),
		filtered(loadmonitorpb.Filter_builder{Roles: roles[:1]}),
		filtered(loadmonitorpb.Filter_builder{Roles: roles}),
	}
	seen := make(map[string]int)
	for i, req := range different {
		name := mustView(t, req).name
		if j, ok := seen[name]; ok {
			t.Errorf("requests %d and %d have one name", i, j)
		}
		seen[name] = i
	}
}

// Rule LIFE2: a filter lives as long as its stream, so it is bounded, and the refusal says what to change.
func TestNewView_RefusesWhatIsTooLargeOrUnspecified(t *testing.T) {
	t.Parallel()
	long := make([]string, 10)
	for i := range long {
		long[i] = strings.Repeat("x", 8<<10)
	}
	for _, tc := range []struct {
		name string
		f    loadmonitorpb.Filter_builder
		says []string
	}{
		{"ids", loadmonitorpb.Filter_builder{Ids: make([]string, 1025)}, []string{"filter.ids", "1025", "1024"}},
		{"models", loadmonitorpb.Filter_builder{Models: make([]string, 1025)}, []string{"filter.models", "1024"}},
		{"zones", loadmonitorpb.Filter_builder{Zones: make([]string, 1025)}, []string{"filter.zones", "1024"}},
		{"roles", loadmonitorpb.Filter_builder{Roles: make([]loadmonitorpb.Role, 1025)}, []string{"filter.roles", "1024"}},
		{"bytes", loadmonitorpb.Filter_builder{Ids: long}, []string{"filter.ids", "81920", "65536"}},
		{"unspecified role", loadmonitorpb.Filter_builder{Roles: make([]loadmonitorpb.Role, 1)}, []string{"filter.roles", "ROLE_UNSPECIFIED"}},
		{"unknown role", loadmonitorpb.Filter_builder{Roles: []loadmonitorpb.Role{77}}, []string{"filter.roles", "77"}},
	} {
		_, err := newView(filtered(tc.f), 1024)
		if err == nil {
			t.Errorf("%s: accepted", tc.name)
			continue
		}
		for _, s := range tc.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %q does not say %s", tc.name, err, s)
			}
		}
	}
}

func TestView_SummaryCountsWhatMatches(t *testing.T) {
	t.Parallel()
	f := newFleet()
	for i := range 100 {
		id := fmt.Sprintf("w%02d", i)
		f.report(id, 1)
		f.put(id, func(ws *load.WorkerStatus) { ws.Worker.Zone = fmt.Sprint("z", i%4) })
		if i%10 == 0 {
			f.expire(id)
		}
	}
	s := f.publish()
	for _, tc := range []struct {
		name string
		f    loadmonitorpb.Filter_builder
		want load.Summary
	}{
		{"everything", loadmonitorpb.Filter_builder{}, load.Summary{Workers: 100, Fresh: 90, Stale: 10}},
		{"a zone", loadmonitorpb.Filter_builder{Zones: []string{"z2"}}, load.Summary{Workers: 25, Fresh: 20, Stale: 5}},
		{"few ids, looked up", loadmonitorpb.Filter_builder{Ids: []string{"w10", "w11", "w99", "nobody"}}, load.Summary{Workers: 3, Fresh: 2, Stale: 1}},
		{"few ids in a zone", loadmonitorpb.Filter_builder{Ids: []string{"w10", "w11"}, Zones: []string{"z2"}}, load.Summary{Workers: 1, Stale: 1}},
		{"nothing", loadmonitorpb.Filter_builder{Zones: []string{"z9"}}, load.Summary{}},
	} {
		if got := mustView(t, filtered(tc.f)).summary(s); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}
