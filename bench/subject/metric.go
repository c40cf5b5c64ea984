package subject

import (
	"cmp"
	"slices"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// metric returns the sum of a family's values.
func metric(families []load.Metric, name string) float64 {
	var total float64
	for _, f := range families {
		if f.Name == name {
			f.Collect(func(v float64, _ ...load.Label) { total += v })
		}
	}
	return total
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func sortByID(workers []*load.Worker) {
	slices.SortFunc(workers, func(a, b *load.Worker) int { return cmp.Compare(a.ID, b.ID) })
}
