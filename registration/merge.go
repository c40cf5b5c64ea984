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
func merge(all []*target, limit int) (merged []*target, dropped int) {
	all = slices.Clone(all)
	slices.SortFunc(all, compareTargets)

	// Sorted by id, origin, source: entries of one worker stand together, the best source first.
	found := make([]candidate, 0, len(all))
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
	merged = make([]*target, len(found))
	for i, c := range found {
		merged[i] = c.target
	}
	conflicts := conflictsIn(found)
	for i, c := range conflicts {
		t := *merged[i] // the source's own stays as it is
		t.worker.Conflict = c.text()
		if c.sharesID {
			t.worker.ID += "@" + t.worker.Origin
		}
		merged[i] = &t
	}
	if len(conflicts) > 0 {
		slices.SortFunc(merged, compareTargets)
	}
	for i := 1; i < len(merged); i++ {
		// Somebody chose an id that looks like ours for a conflict. Whatever it becomes, it must be distinct.
		if merged[i].worker.ID <= merged[i-1].worker.ID {
			t := *merged[i]
			t.worker.ID = merged[i-1].worker.ID + "'"
			merged[i] = &t
		}
	}
	return merged, dropped
}

// candidate is a worker and the sources that contradict its best one.
type candidate struct {
	*target
	differing []string
}

// conflict is what stands against feeding a worker.
type conflict struct {
	texts    []string
	sharesID bool
}

func (c *conflict) text() string {
	slices.Sort(c.texts)
	return strings.Join(c.texts, "; ")
}

// conflictsIn finds the workers in conflict by their index in found, which is sorted by id and origin.
func conflictsIn(found []candidate) map[int]*conflict {
	conflicts := make(map[int]*conflict)
	add := func(i int, text string) *conflict {
		if conflicts[i] == nil {
			conflicts[i] = &conflict{}
		}
		conflicts[i].texts = append(conflicts[i].texts, text)
		return conflicts[i]
	}

	first := make(map[string]int, len(found)) // by origin
	shared := make(map[string][]int)          // by origin, where there is more than one
	for i, c := range found {
		one, taken := first[c.worker.Origin]
		switch same := shared[c.worker.Origin]; {
		case !taken:
			first[c.worker.Origin] = i
		case same == nil:
			shared[c.worker.Origin] = []int{one, i}
		default:
			shared[c.worker.Origin] = append(same, i)
		}
	}
	for origin, same := range shared {
		text := fmt.Sprintf("workers %s have the same address %s: remove all but one", named(found, same), origin)
		for _, i := range same {
			add(i, text)
		}
	}

	for i := 0; i < len(found); {
		from := i
		for i++; i < len(found) && found[i].worker.ID == found[from].worker.ID; {
			i++
		}
		if i-from == 1 {
			continue
		}
		same := make([]int, i-from)
		for j := range same {
			same[j] = from + j
		}
		text := fmt.Sprintf("workers %s have the same id: give each its own", named(found, same))
		for _, j := range same {
			add(j, text).sharesID = true
		}
	}

	for i, c := range found {
		if len(c.differing) == 0 {
			continue
		}
		sources := slices.Compact(slices.Sorted(slices.Values(append(c.differing, c.source))))
		add(i, fmt.Sprintf("worker %q is described in different ways (%s): make them agree, or remove all but one",
			c.worker.ID, strings.Join(sources, ", ")))
	}
	return conflicts
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
func compareTargets(a, b *target) int {
	s, o := a.socketSpec(), b.socketSpec()
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
		cmp.Compare(a.apiKeyFile, b.apiKeyFile),
		slices.CompareFunc(s.endpoints, o.endpoints, func(x, y endpoint) int { return cmp.Or(cmp.Compare(x.host, y.host), x.port-y.port) }),
		cmp.Compare(s.topic, o.topic),
		cmp.Compare(s.serverKey, o.serverKey),
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
