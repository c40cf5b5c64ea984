package client

import (
	"fmt"
	"math/bits"
)

// index finds a worker's place in a table by id, URL and handle. It is immutable and shared by all views until workers
// come, go or change their URL.
type index struct {
	byID     map[string]uint32
	byURL    map[string]uint32 // of workers with one URL the first by id
	byHandle handles
}

// newIndex builds the index of cells. The error names an id or a handle that two of them share.
func newIndex(cells []cell) (*index, error) {
	x := &index{
		byID:     make(map[string]uint32, len(cells)),
		byURL:    make(map[string]uint32, len(cells)),
		byHandle: newHandles(len(cells)),
	}
	for i := range cells {
		s := cells[i].status
		if _, taken := x.byID[s.ID]; taken {
			return nil, fmt.Errorf("two workers have the id %q", s.ID)
		}
		x.byID[s.ID] = uint32(i)
		if _, taken := x.byURL[s.URL]; !taken {
			x.byURL[s.URL] = uint32(i)
		}
		if !x.byHandle.put(s.Handle, i) {
			return nil, fmt.Errorf("two workers have the handle %d", s.Handle)
		}
	}
	return x, nil
}

// fits reports whether the index of table t also serves cells.
func (x *index) fits(t *table, cells []cell) bool {
	if t.n != len(cells) {
		return false
	}
	for i := range cells {
		if !samePlace(t.at(i).status, cells[i].status) {
			return false
		}
	}
	return true
}

// samePlace reports whether every look-up that finds a also finds b.
func samePlace(a, b *Status) bool { return a.Handle == b.Handle && a.ID == b.ID && a.URL == b.URL }

// handles maps handles to places: open addressing, at most half full. Handles are numbers that the monitor hands out in
// rising order, so multiplying by the golden ratio spreads them evenly; a general map costs twice as much.
type handles struct {
	slots []handleSlot
	shift uint8
}

type handleSlot struct {
	handle uint32
	place  uint32 // plus one; 0: empty
}

func newHandles(n int) handles {
	log2 := max(1, bits.Len(uint(2*n)))
	return handles{slots: make([]handleSlot, 1<<log2), shift: uint8(32 - log2)}
}

func (h *handles) start(handle uint32) uint32 { return handle * 0x9E3779B1 >> h.shift }

// put adds a handle; false: it is there already.
func (h *handles) put(handle uint32, place int) bool {
	i := h.start(handle)
	for ; h.slots[i].place != 0; i = (i + 1) & uint32(len(h.slots)-1) {
		if h.slots[i].handle == handle {
			return false
		}
	}
	h.slots[i] = handleSlot{handle, uint32(place + 1)}
	return true
}

// find returns the place of a handle, or -1.
func (h *handles) find(handle uint32) int {
	for i := h.start(handle); ; i = (i + 1) & uint32(len(h.slots)-1) {
		s := h.slots[i]
		if s.place == 0 {
			return -1
		}
		if s.handle == handle {
			return int(s.place - 1)
		}
	}
}
