package client

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/loadmonitor/loadmonitor/load"
)

// picture is what the monitor said, as of one version: immutable, without anything of the client's own clock.
type picture struct {
	epoch   string
	view    string // names filter and options, opaque
	version uint64
	state   load.FleetState
	summary load.Summary // as told
	tally   load.Summary // as counted here

	table table
	index *index
}

// mark is a refresh mark (rule FR6).
type mark struct {
	handle    uint32
	refreshed load.Instant
}

// replaced returns the picture of exactly these workers. held, which may be nil, lends its index if nobody came or went.
func replaced(held *picture, epoch string, changed []*Status, marks []mark) (*picture, error) {
	cells := make([]cell, len(changed))
	for i, s := range changed {
		if i > 0 && s.ID <= changed[i-1].ID {
			return nil, fmt.Errorf("full picture is not sorted by id: %q after %q", s.ID, changed[i-1].ID)
		}
		cells[i].status = s
	}
	if held != nil && held.epoch != epoch {
		held = nil
	}
	return assembled(held, cells, marks)
}

// patched returns held with what changed since: whole workers first, then removals, then marks.
func (held *picture) patched(changed []*Status, removed []uint32, marks []mark) (*picture, error) {
	places := make([]int, len(changed))
	moved := false // somebody came, went or changed the URL
	for i, s := range changed {
		places[i] = held.index.byHandle.find(s.Handle)
		if places[i] < 0 {
			moved = true
			continue
		}
		old := held.table.at(places[i]).status
		if old.ID != s.ID {
			return nil, fmt.Errorf("handle %d stood for worker %q and now for %q", s.Handle, old.ID, s.ID)
		}
		moved = moved || !samePlace(old, s)
	}
	for _, h := range removed {
		moved = moved || held.index.byHandle.find(h) >= 0
	}
	if moved {
		return held.rearranged(changed, places, removed, marks)
	}

	p := &picture{index: held.index, tally: held.tally}
	e := held.table.edit()
	for i, s := range changed {
		p.tally.Add(e.to.at(places[i]).status.Freshness, -1)
		p.tally.Add(s.Freshness, 1)
		e.set(places[i], cell{status: s}) // marks end with the status that they were about
	}
	for _, m := range marks {
		if i := held.index.byHandle.find(m.handle); i >= 0 {
			c := e.to.at(i)
			c.refreshed = max(c.refreshed, m.refreshed)
			e.set(i, c)
		}
	}
	p.table = e.to
	return p, nil
}

// rearranged is patched for when the list of workers itself changes. places holds where each of changed is in held, or
// -1. Removals come after changes, so a worker that is in both is gone.
func (held *picture) rearranged(changed []*Status, places []int, removed []uint32, marks []mark) (*picture, error) {
	now := make([]cell, held.table.n, held.table.n+len(changed))
	for i := range held.table.n {
		now[i] = held.table.at(i)
	}
	for i, s := range changed {
		if places[i] >= 0 {
			now[places[i]] = cell{status: s}
		} else {
			now = append(now, cell{status: s})
		}
	}
	if len(removed) > 0 {
		gone := make(map[uint32]struct{}, len(removed))
		for _, h := range removed {
			gone[h] = struct{}{}
		}
		now = slices.DeleteFunc(now, func(c cell) bool {
			_, ok := gone[c.status.Handle]
			return ok
		})
	}
	slices.SortFunc(now, func(a, b cell) int { return cmp.Compare(a.status.ID, b.status.ID) })
	return assembled(held, now, marks)
}

// assembled returns the picture of cells, which are sorted by id.
func assembled(held *picture, cells []cell, marks []mark) (*picture, error) {
	p := &picture{}
	if held != nil && held.index.fits(&held.table, cells) {
		p.index = held.index
	} else {
		var err error
		if p.index, err = newIndex(cells); err != nil {
			return nil, err
		}
	}
	for _, m := range marks {
		if i := p.index.byHandle.find(m.handle); i >= 0 {
			cells[i].refreshed = max(cells[i].refreshed, m.refreshed)
		}
	}
	for i := range cells {
		p.tally.Add(cells[i].status.Freshness, 1)
	}
	p.table = newTable(cells)
	return p, nil
}
