package registration

import (
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/loadmonitor/loadmonitor/load"
)

// One pass over the whole set, as after each change of it.
func BenchmarkMerge(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("workers=%d", n), func(b *testing.B) {
			all := make([]*target, n)
			for i := range all {
				t, err := Spec{URL: fmt.Sprintf("http://10.%d.%d.%d:30000", i>>16, i>>8&255, i&255)}.normalise(DefaultMaxRanks)
				if err != nil {
					b.Fatal(err)
				}
				t.source = SourceConfig
				all[i] = t
			}
			b.ReportAllocs()
			for b.Loop() {
				if merged, _ := merge(all, DefaultMaxWorkers); len(merged) != n {
					b.Fatal(len(merged))
				}
			}
		})
	}
}

// One renewal over a kept connection on loopback, the engine's side included.
func BenchmarkRenewal(b *testing.B) {
	srv := httptest.NewServer(&fakeEngine{})
	defer srv.Close()
	r, err := New(Options{Sink: newSink(), Listen: listenLoopback})
	if err != nil {
		b.Fatal(err)
	}
	defer r.engines.close()
	w := load.Worker{URL: srv.URL, Origin: srv.Listener.Addr().String()}
	b.ReportAllocs()
	for b.Loop() {
		if a, _ := r.engines.start(b.Context(), &w, "", renewal); a.outcome != granted {
			b.Fatalf("%+v", a)
		}
	}
}
