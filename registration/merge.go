package registration

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxNamed bounds how many workers of a conflict its text names.
const maxNamed = 4

// merge makes the full set out of what all sources say (rules ID1 and ID3). The result is sorted by id, has distinct ids
// and does not depend on the order of the input:
//
//   - entries that say the same are one worker, credited to the configuration before the API before discovery;
//   - workers that share an origin are in conflict, each under its own id;
//   - workers that share an id are in conflict, each under id@origin;
//   - entries that share both and differ in the rest are one worker in conflict.
//
// Above limit the configured come first, then by id; dropped is how many are left out.
func merge(all []target, limit int) (merged []target, dropped int) {
	all = slices.Clone(all)
	slices.SortFunc(all, compareTargets)

	// Sorted by id, origin, source: entries of one worker stand together, the best source first.
	var found []candidate
	for _, t := range all {
		if n := len(found); n > 0 && found[n-1].worker.ID == t.worker.ID && found[n-1].worker.Origin == t.worker.Origin {
			if last := &found[n-1]; !last.describes(t) {
				last.differing = append(last.differing, t.source)
			}
			continue
		}
		found = append(found, candidate{target: t})
	}
	if len(found) > limit {
		slices.SortStableFunc(found, func(a, b candidate) int { return sourceRank(a.source) - sourceRank(b.source) })
		dropped = len(found) - limit
		found = found[:limit]
		slices.SortFunc(found, func(a, b candidate) int { return compareTargets(a.target, b.target) })
	}
	showConflicts(found)

	merged = make([]target, len(found))
	for i, c := range found {
		merged[i] = c.target
	}
	slices.SortFunc(merged, compareTargets)
	for i := 1; i < len(merged); i++ {
		// Somebody chose an id that looks like ours for a conflict. Whatever it becomes, it must be distinct.
		for merged[i].worker.ID <= merged[i-1].worker.ID {
			merged[i].worker.ID = merged[i-1].worker.ID + "'"
		}
	}
	return merged, dropped
}

// candidate is a worker and the sources that contradict its best one.
type candidate struct {
	target
	differing []string
}

// showConflicts writes into each worker what it is in conflict with, and gives those that share an id names of their own.
func showConflicts(found []candidate) {
	ids := make(map[string][]int, len(found))
	origins := make(map[string][]int, len(found))
	for i, c := range found {
		ids[c.worker.ID] = append(ids[c.worker.ID], i)
		origins[c.worker.Origin] = append(origins[c.worker.Origin], i)
	}
	conflicts := make(map[int][]string)
	for origin, same := range origins {
		if len(same) < 2 {
			continue
		}
		text := fmt.Sprintf("workers %s have the same address %s: remove all but one", named(found, same), origin)
		for _, i := range same {
			conflicts[i] = append(conflicts[i], text)
		}
	}
	for id, same := range ids {
		if len(same) < 2 {
			continue
		}
		text := fmt.Sprintf("workers %s have the same id: give each its own", named(found, same))
		for _, i := range same {
			conflicts[i] = append(conflicts[i], text)
			found[i].worker.ID = id + "@" + found[i].worker.Origin
		}
	}
	for i, c := range found {
		if len(c.differing) == 0 {
			continue
		}
		sources := slices.Compact(slices.Sorted(slices.Values(append(c.differing, c.source))))
		conflicts[i] = append(conflicts[i], fmt.Sprintf("worker %q is described in different ways (%s): make them agree, or remove all but one",
			c.worker.ID, strings.Join(sources, ", ")))
	}
	for i, texts := range conflicts {
		slices.Sort(texts)
		found[i].worker.Conflict = strings.Join(texts, "; ")
	}
}

// named lists workers of a conflict: "a" at 10.0.0.5:30000 (config) and so on, in the order of found, which is sorted.
func named(found []candidate, indices []int) string {
	names := make([]string, 0, maxNamed+1)
	for _, i := range indices {
		if len(names) == maxNamed {
			names = append(names, fmt.Sprintf("%d more", len(indices)-maxNamed))
			break
		}
		t := found[i]
		names = append(names, fmt.Sprintf("%q at %s (%s)", t.worker.ID, t.worker.Origin, t.source))
	}
	return strings.Join(names, " and ")
}

// compareTargets is a total order over everything that a source can say.
func compareTargets(a, b target) int {
	return cmp.Or(
		cmp.Compare(a.worker.ID, b.worker.ID),
		cmp.Compare(a.worker.Origin, b.worker.Origin),
		cmp.Compare(sourceRank(a.source), sourceRank(b.source)),
		cmp.Compare(a.source, b.source),
		cmp.Compare(a.worker.URL, b.worker.URL),
		cmp.Compare(a.worker.Role, b.worker.Role),
		slices.Compare(a.worker.Models, b.worker.Models),
		cmp.Compare(a.worker.Zone, b.worker.Zone),
		cmp.Compare(a.worker.ExpectedRanks, b.worker.ExpectedRanks),
		cmp.Compare(a.worker.Transport, b.worker.Transport),
		cmp.Compare(a.tokenFile, b.tokenFile),
	)
}

func sourceRank(source string) int {
	switch source {
	case SourceConfig:
		return 0
	case SourceAPI:
		return 1
	}
	return 2
}
