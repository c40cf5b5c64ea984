package load_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/loadmonitor/loadmonitor/load"
)

// tableEntry is worker i as it changed at a version.
func tableEntry(i int, version uint64) *load.Entry {
	return &load.Entry{WorkerStatus: &load.WorkerStatus{Worker: &load.Worker{ID: fmt.Sprintf("w%06d", i)}, ChangedVersion: version}}
}

// Sizes around those at which another chunk or branch begins.
var tableSizes = []int{0, 1, 15, 16, 17, 511, 512, 513, 1500}

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

// The differences between two tables lead from one to the other, also when workers came or left in between.
func TestTable_DiffLeadsFromOneToTheOther(t *testing.T) {
	t.Parallel()
	for _, n := range tableSizes {
		rng := rand.New(rand.NewPCG(2, uint64(n)))
		var entries []*load.Entry
		for i := range n {
			entries = append(entries, tableEntry(10*i, 1))
		}
		table := load.NewTable(entries)
		for version := uint64(2); version < 30; version++ {
			before := table
			edit := table.Edit(version)
			changes := min(len(entries), rng.IntN(4))
			for _, i := range rng.Perm(len(entries))[:changes] {
				entries[i] = &load.Entry{WorkerStatus: entries[i].WorkerStatus, RefreshedVersion: version}
				edit.Set(i, entries[i])
			}
			table = edit.Table()
			if pairs := checkDiff(t, before, table); pairs != changes {
				t.Fatalf("%d workers: %d pairs for %d changes", n, pairs, changes)
			}
			// Workers come and leave anywhere, so that the others move.
			for range rng.IntN(40) {
				e := tableEntry(rng.IntN(10*n+10), version)
				switch i, found := slices.BinarySearchFunc(entries, e, byID); {
				case !found && rng.IntN(2) == 0:
					entries = slices.Insert(entries, i, e)
				case i < len(entries):
					entries = slices.Delete(entries, i, i+1)
				}
			}
			before, table = table, load.NewTable(entries)
			checkDiff(t, before, table)
		}
	}
}

func byID(x, y *load.Entry) int { return strings.Compare(x.Worker.ID, y.Worker.ID) }

// checkDiff takes the differences away from the one table and adds them, and returns how many there are.
func checkDiff(t *testing.T, before, after load.Table) (pairs int) {
	t.Helper()
	count := make(map[*load.Entry]int)
	for e := range before.All() {
		count[e]++
	}
	for was, is := range after.Diff(before) {
		pairs++
		count[was]--
		count[is]++
	}
	for e := range after.All() {
		count[e]--
	}
	delete(count, nil)
	for e, n := range count {
		if n != 0 {
			t.Fatalf("from %d to %d workers: %s is left %d times", before.Len(), after.Len(), e.Worker.ID, n)
		}
	}
	return pairs
}
