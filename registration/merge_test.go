package registration

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/loadmonitor/loadmonitor/load"
)

func described(t *testing.T, source string, s Spec) *target {
	t.Helper()
	got, err := s.normalise(DefaultMaxRanks)
	if err != nil {
		t.Fatal(err)
	}
	got.source = source
	return got
}

func TestMerge_OneWorkerPerDescription(t *testing.T) {
	for _, tt := range []struct {
		name string
		all  []*target
		want []string // "id origin source" or "id origin source: part of the conflict"
	}{
		{"two spellings of one worker (case A6)", []*target{
			described(t, "k8s", Spec{URL: "http://w1.pool:30000/"}), described(t, "k8s", Spec{URL: "W1.POOL:30000"}),
		}, []string{"w1.pool:30000 w1.pool:30000 k8s"}},
		{"the configuration is credited first", []*target{
			described(t, "k8s", Spec{URL: "a:1"}), described(t, SourceAPI, Spec{URL: "a:1"}), described(t, SourceConfig, Spec{URL: "a:1"}),
		}, []string{"a:1 a:1 config"}},
		{"one origin, two ids (rule ID3)", []*target{
			described(t, "k8s", Spec{ID: "b", URL: "h:1"}), described(t, SourceConfig, Spec{ID: "a", URL: "h:1"}), described(t, SourceConfig, Spec{ID: "c", URL: "h:2"}),
		}, []string{
			`a h:1 config: workers "a" at h:1 (config) and "b" at h:1 (k8s) have the same address h:1`,
			`b h:1 k8s: workers "a" at h:1 (config) and "b" at h:1 (k8s) have the same address h:1`,
			"c h:2 config",
		}},
		{"one id, two origins", []*target{
			described(t, "k8s", Spec{ID: "a", URL: "h:2"}), described(t, SourceConfig, Spec{ID: "a", URL: "h:1"}),
		}, []string{
			`a@h:1 h:1 config: workers "a" at h:1 (config) and "a" at h:2 (k8s) have the same id`,
			`a@h:2 h:2 k8s: workers "a" at h:1 (config) and "a" at h:2 (k8s) have the same id`,
		}},
		{"one worker, two roles", []*target{
			described(t, "k8s", Spec{URL: "h:1", Role: load.RoleDecode}), described(t, SourceAPI, Spec{URL: "h:1", Role: load.RolePrefill}),
		}, []string{`h:1 h:1 api: worker "h:1" is described in different ways (api, k8s)`}},
		{"one worker, two schemes", []*target{
			described(t, "k8s", Spec{URL: "http://h:1"}), described(t, "k8s", Spec{URL: "https://h:1"}),
		}, []string{`h:1 h:1 k8s: worker "h:1" is described in different ways (k8s)`}},
		{"six at one address", []*target{
			described(t, "x", Spec{ID: "f", URL: "h:1"}), described(t, "x", Spec{ID: "e", URL: "h:1"}), described(t, "x", Spec{ID: "d", URL: "h:1"}),
			described(t, "x", Spec{ID: "c", URL: "h:1"}), described(t, "x", Spec{ID: "b", URL: "h:1"}), described(t, "x", Spec{ID: "a", URL: "h:1"}),
		}, []string{"a h:1 x: 2 more", "b h:1 x: 2 more", "c h:1 x: 2 more", "d h:1 x: 2 more", `e h:1 x: "a" at h:1 (x) and "b"`, "f h:1 x: 2 more"}},
		{"an id made to collide", []*target{
			described(t, "x", Spec{ID: "a", URL: "h:1"}), described(t, "x", Spec{ID: "a", URL: "h:2"}), described(t, "x", Spec{ID: "a@h:1", URL: "h:3"}),
		}, []string{`a@h:1 h:1 x: same id`, `a@h:1' h:3 x`, `a@h:2 h:2 x: same id`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, dropped := merge(tt.all, 100)
			if dropped != 0 || len(got) != len(tt.want) {
				t.Fatalf("%d dropped, got %+v, want %d workers", dropped, got, len(tt.want))
			}
			for i, w := range tt.want {
				name, conflict, disputed := strings.Cut(w, ": ")
				g := got[i].worker
				if s := fmt.Sprintf("%s %s %s", g.ID, g.Origin, got[i].source); s != name {
					t.Errorf("worker %d is %q, want %q", i, s, name)
				}
				if (g.Conflict != "") != disputed || !strings.Contains(g.Conflict, conflict) {
					t.Errorf("worker %d has conflict %q, want %q", i, g.Conflict, conflict)
				}
			}
		})
	}
}

// Rule ID3 and case A6: what comes out depends on what the sources say, not on the order in which it is looked at.
func TestMerge_OrderOfInputDoesNotMatter(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		all := make([]*target, 12)
		for i := range all {
			all[i] = described(t, []string{SourceConfig, SourceAPI, "k8s", "dns"}[rng.IntN(4)], Spec{
				ID:   []string{"", "a", "b", "a@h:1"}[rng.IntN(4)],
				URL:  fmt.Sprintf("h:%d", 1+rng.IntN(4)),
				Role: load.Role(rng.IntN(3)),
				Zone: []string{"", "z"}[rng.IntN(2)],
			})
		}
		limit := 3 + rng.IntN(12)
		want, wantDropped := merge(all, limit)
		for i := 1; i < len(want); i++ {
			if want[i-1].worker.ID >= want[i].worker.ID {
				t.Fatalf("ids %q and %q are not in order", want[i-1].worker.ID, want[i].worker.ID)
			}
		}
		fed := make(map[string]bool)
		for _, w := range want {
			if w.worker.Conflict == "" && fed[w.worker.Origin] {
				t.Fatalf("origin %s is fed twice", w.worker.Origin)
			}
			fed[w.worker.Origin] = true
		}
		for range 5 {
			rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			got, gotDropped := merge(all, limit)
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(target{})); diff != "" || gotDropped != wantDropped {
				t.Fatalf("%d dropped, then %d: (-one order +another)\n%s", wantDropped, gotDropped, diff)
			}
		}
	}
}

func TestMerge_BoundKeepsTheConfigured(t *testing.T) {
	got, dropped := merge([]*target{
		described(t, "k8s", Spec{ID: "a", URL: "h:1"}), described(t, "k8s", Spec{ID: "b", URL: "h:2"}),
		described(t, SourceConfig, Spec{ID: "z", URL: "h:3"}),
	}, 2)
	if dropped != 1 || len(got) != 2 || got[0].worker.ID != "a" || got[1].worker.ID != "z" {
		t.Errorf("%d dropped, kept %+v; want a and z", dropped, got)
	}
}
