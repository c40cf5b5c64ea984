package aggregator

import (
	"slices"
	"testing"

	"github.com/loadmonitor/loadmonitor/load"
)

// Rule LIFE4: every reason for which a report can be refused is shown from the start, and no other.
func TestLIFE4_RefusalsOfReportsAreShown(t *testing.T) {
	a, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	var labels []string
	for _, m := range a.Metrics() {
		if m.Name == "reports_refused_total" {
			m.Collect(func(_ float64, l ...load.Label) { labels = append(labels, l[0].Value) })
		}
	}
	for label, want := range map[string]bool{
		"unknown_worker": true, "negative": true, "stream_superseded": true, "publisher_conflict": true, "not_ready": true,
		"too_many_streams": false, "too_many_watchers": false, "watcher_stuck": false, "too_many_workers": false,
		"worker_spec": false, "configured": false, "shutting_down": false,
	} {
		if slices.Contains(labels, label) != want {
			t.Errorf("%s is shown: %v, want %v", label, !want, want)
		}
	}
}
