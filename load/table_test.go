package load_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/loadmonitor/loadmonitor/load"
)

// tableEntry is worker i as it changed at a version.
func tableEntry(i int, version uint64) *load.Entry {
	return &load.Entry{WorkerStatus: &load.WorkerStatus{Worker: load.Worker{ID: fmt.Sprintf("w%06d", i)}, ChangedVersion: version}}
}

// Sizes around those at which another chunk or branch begins.
var tableSizes = []int{0, 1, 31, 32, 33, 1023, 1024, 1025, 3000}

// Rule SNAP3: a table shares what did not change, and stays as it is when the next one is made from it.
func TestTable_HoldsWhatWasSetAndNeverChanges(t *testing.T) {
	t.Parallel()
	for _, n := range tableSizes {
		rng := rand.New(rand.NewPCG(1, uint64(n)))
		want := make([]*load.Entry, n)
		for i := range want {
			want[i] = tableEntry(i, 1)
		}
		table := load.NewTable(want)
		for version := uint64(2); version < 40; version++ {
			before, held := slices.Clone(want), table
			edit := table.Edit(version)
			if n > 0 {
				for range rng.IntN(4) {
					i := rng.IntN(n)
					want[i] = tableEntry(i, version)
					edit.Set(i, want[i])
				}
			}
			table = edit.Table()
			if !slices.Equal(slices.Collect(table.All()), want) || table.Len() != n {
				t.Fatalf("%d workers, version %d: the table does not hold what was set", n, version)
			}
			if !slices.Equal(slices.Collect(held.All()), before) {
				t.Fatalf("%d workers, version %d: the table before changed", n, version)
			}
			base := rng.Uint64N(version + 1)
			changed := slices.DeleteFunc(slices.Clone(want), func(e *load.Entry) bool { return e.Changed() <= base })
			if got := slices.Collect(table.Since(base)); !slices.Equal(got, changed) {
				t.Fatalf("%d workers, version %d: %d changed since %d, want %d", n, version, len(got), base, len(changed))
			}
		}
	}
}

func TestTable_FindsByID(t *testing.T) {
	t.Parallel()
	for _, n := range tableSizes {
		var entries []*load.Entry
		for i := range n {
			entries = append(entries, tableEntry(2*i+1, 1))
		}
		table := load.NewTable(entries)
		for i := range n {
			if e, at := table.Find(entries[i].Worker.ID); e != entries[i] || at != i || table.At(i) != e {
				t.Fatalf("%d workers: worker %d found at %d", n, i, at)
			}
			if e, at := table.Find(fmt.Sprintf("w%06d", 2*i)); e != nil || at != i {
				t.Fatalf("%d workers: an unknown worker found, or its place %d, want %d", n, at, i)
			}
		}
		if e, at := table.Find("x"); e != nil || at != n {
			t.Fatalf("%d workers: the place behind the last is %d", n, at)
		}
	}
}
