package load

import (
	"iter"
	"slices"
)

// One change copies a chunk, a branch and the list of branches: about 600 bytes at 10,000 workers. Chunks are small because
// there are too many of them to stay in a CPU's cache.
const (
	chunkSize  = 16 // entries of a chunk
	fanout     = 32 // chunks of a branch
	branchSize = fanout * chunkSize
)

// Table is an immutable list of entries sorted by id. Changing an entry copies what leads to it, nothing else (rule SNAP3):
//
//	Table ─► [ *branch | *branch ]            one list per version
//	             │         └── 32 chunks, shared with other versions
//	             └─► [ *chunk | *chunk ]       copied when one of its chunks is
//	                     │        └── 16 entries, shared with other versions
//	                     └─► [ *Entry ]        copied when one of its entries changes
//	                              └─► *WorkerStatus, shared until that worker changes
type Table struct {
	branches []*branch
	n        int
}

type branch struct {
	chunks  [fanout]*chunk // nil behind the last
	changed uint64         // highest Changed of the entries
}

type chunk struct {
	entries [chunkSize]*Entry // nil behind the last
	changed uint64            // highest Changed of the entries
}

// NewTable builds a table of entries, which must be sorted by id and have distinct ids.
func NewTable(entries []*Entry) Table {
	t := Table{branches: make([]*branch, (len(entries)+branchSize-1)/branchSize), n: len(entries)}
	for i, e := range entries {
		if i%branchSize == 0 {
			t.branches[i/branchSize] = new(branch)
		}
		b := t.branches[i/branchSize]
		if i%chunkSize == 0 {
			b.chunks[i/chunkSize%fanout] = new(chunk)
		}
		c := b.chunks[i/chunkSize%fanout]
		c.entries[i%chunkSize] = e
		c.changed = max(c.changed, e.Changed())
		b.changed = max(b.changed, c.changed)
	}
	return t
}

// Len returns the number of workers.
func (t Table) Len() int { return t.n }

// At returns entry i, 0 <= i < Len().
func (t Table) At(i int) *Entry {
	n := uint(i)
	return t.branches[n/branchSize].chunks[n/chunkSize%fanout].entries[n%chunkSize]
}

// All yields the entries in order of id.
func (t Table) All() iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for i := range t.n {
			if !yield(t.At(i)) {
				return
			}
		}
	}
}

// Since yields the entries of which anything changed after base, in order of id, without looking into chunks that did not
// change.
func (t Table) Since(base uint64) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, b := range t.branches {
			if b.changed <= base {
				continue
			}
			for _, c := range b.chunks {
				if c == nil {
					break
				}
				if c.changed <= base {
					continue
				}
				for _, e := range c.entries {
					if e == nil {
						break
					}
					if e.Changed() > base && !yield(e) {
						return
					}
				}
			}
		}
	}
}

// Diff yields what before and t hold at every position at which they hold different entries, without looking into what they
// share; nil where one of them is shorter. Taking the first of each pair from before and adding the second gives t, also
// when workers came, left or moved.
func (t Table) Diff(before Table) iter.Seq2[*Entry, *Entry] {
	return func(yield func(was, is *Entry) bool) {
		for i := range max(len(before.branches), len(t.branches)) {
			b1, b2 := before.branch(i), t.branch(i)
			if b1 == b2 {
				continue
			}
			for j := range fanout {
				c1, c2 := b1.chunk(j), b2.chunk(j)
				if c1 == c2 {
					continue
				}
				for k := range chunkSize {
					if was, is := c1.entries[k], c2.entries[k]; was != is && !yield(was, is) {
						return
					}
				}
			}
		}
	}
}

// What stands behind the last branch and the last chunk.
var (
	noBranch branch
	noChunk  chunk
)

func (t Table) branch(i int) *branch {
	if i < len(t.branches) {
		return t.branches[i]
	}
	return &noBranch
}

func (b *branch) chunk(i int) *chunk {
	if c := b.chunks[i]; c != nil {
		return c
	}
	return &noChunk
}

// Find returns the entry with the id and its position, or nil and the position where it would stand.
func (t Table) Find(id string) (*Entry, int) {
	lo, hi := 0, t.n
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if t.At(mid).Worker.ID < id {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < t.n && t.At(lo).Worker.ID == id {
		return t.At(lo), lo
	}
	return nil, lo
}

// Edit collects replacements of entries for the table of one version.
type Edit struct {
	t       Table
	version uint64
}

// Edit starts a copy of t for a version above all that t has seen. t itself does not change.
func (t Table) Edit(version uint64) *Edit {
	return &Edit{t: Table{branches: slices.Clone(t.branches), n: t.n}, version: version}
}

// Set replaces entry i by one of the same id that changed at the edit's version.
func (e *Edit) Set(i int, entry *Entry) {
	// What has not the edit's version is still shared with older tables.
	b := e.t.branches[i/branchSize]
	if b.changed != e.version {
		own := *b
		own.changed = e.version
		b = &own
		e.t.branches[i/branchSize] = b
	}
	c := b.chunks[i/chunkSize%fanout]
	if c.changed != e.version {
		own := *c
		own.changed = e.version
		c = &own
		b.chunks[i/chunkSize%fanout] = c
	}
	c.entries[i%chunkSize] = entry
}

// Table returns the result. The edit must not be used after that.
func (e *Edit) Table() Table { return e.t }
