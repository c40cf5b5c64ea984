package client

import (
	"slices"

	"github.com/loadmonitor/loadmonitor/load"
)

// chunkSize balances the two copies that one change costs: a chunk, and the list of chunks.
const chunkSize = 64

// cell is what changes of one worker between two views.
type cell struct {
	status    *Status
	refreshed load.Instant
}

// chunk holds its cells as two lists, because look-ups mostly want the status alone: half of the cache lines.
type chunk struct {
	statuses  [chunkSize]*Status
	refreshed [chunkSize]load.Instant
}

// table is an immutable list of workers sorted by id. Views share the chunks that did not change:
//
//	table ─► [ *chunk | *chunk | *chunk ]     one list per view
//	            │        │        └── 64 cells, shared with other views
//	            │        └─────────── copied when one of its cells changes
//	            └── cell ─► *Status       shared until that worker changes
type table struct {
	chunks []*chunk
	n      int
}

func newTable(cells []cell) table {
	t := table{chunks: make([]*chunk, (len(cells)+chunkSize-1)/chunkSize), n: len(cells)}
	for i := range t.chunks {
		t.chunks[i] = new(chunk)
	}
	for i, c := range cells {
		to := t.chunks[i/chunkSize]
		to.statuses[i%chunkSize], to.refreshed[i%chunkSize] = c.status, c.refreshed
	}
	return t
}

// at returns cell i, 0 <= i < t.n.
func (t *table) at(i int) cell {
	c, k := t.chunks[uint(i)/chunkSize], uint(i)%chunkSize
	return cell{c.statuses[k], c.refreshed[k]}
}

// edit collects changes of cells for the next table.
type edit struct {
	from, to table
	owned    bool // to has its own list of chunks
}

// edit starts a copy of t; t itself does not change.
func (t table) edit() *edit { return &edit{from: t, to: t} }

// set replaces cell i of the copy.
func (e *edit) set(i int, to cell) {
	if !e.owned {
		e.to.chunks = slices.Clone(e.from.chunks)
		e.owned = true
	}
	c := i / chunkSize
	if e.to.chunks[c] == e.from.chunks[c] {
		own := *e.from.chunks[c]
		e.to.chunks[c] = &own
	}
	e.to.chunks[c].statuses[i%chunkSize], e.to.chunks[c].refreshed[i%chunkSize] = to.status, to.refreshed
}
