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

type chunk [chunkSize]cell

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
		copy(t.chunks[i][:], cells[i*chunkSize:])
	}
	return t
}

// at returns cell i, 0 <= i < t.n. It must not be changed.
func (t *table) at(i int) *cell { return &t.chunks[uint(i)/chunkSize][uint(i)%chunkSize] }

// edit collects changes of cells for the next table.
type edit struct {
	from, to table
	owned    bool // to has its own list of chunks
}

// edit starts a copy of t; t itself does not change.
func (t table) edit() *edit { return &edit{from: t, to: t} }

// cell returns cell i of the copy, which may be changed.
func (e *edit) cell(i int) *cell {
	if !e.owned {
		e.to.chunks = slices.Clone(e.from.chunks)
		e.owned = true
	}
	c := i / chunkSize
	if e.to.chunks[c] == e.from.chunks[c] {
		own := *e.from.chunks[c]
		e.to.chunks[c] = &own
	}
	return &e.to.chunks[c][i%chunkSize]
}
