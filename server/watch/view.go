package watch

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// maxFilterBytes bounds the text of one list of a filter, because a filter lives as long as its stream (rule LIFE2).
const maxFilterBytes = 64 << 10

// view is what the content of a watcher's frames depends on besides the snapshot: filter and options in one normal form.
// Two requests that mean the same have the same view and share bytes. A view never changes.
type view struct {
	// name stands for all other fields. It is opaque to receivers, who give it back to resume.
	name string

	ids, models, zones []string // sorted, distinct; empty: any
	roles              uint8    // bit r: load.Role(r); 0: any

	ranks    bool // send ranks
	fullOnly bool // send each update as a full picture
	noMarks  bool // send no refresh marks
}

// newView reads filter and options of a request. min_interval_ms is left out on purpose: it says when frames come, not
// what they hold, so a stream may resume with another interval. The error names the list and the bound.
func newView(req *loadmonitorpb.WatchRequest, maxValues int) (*view, error) {
	v := &view{ranks: req.GetRanks(), fullOnly: req.GetFullOnly(), noMarks: req.GetNoRefreshMarks()}
	if err := v.setFilter(req.GetFilter(), maxValues); err != nil {
		return nil, err
	}
	v.name = v.hash()
	return v, nil
}

func (v *view) setFilter(f *loadmonitorpb.Filter, maxValues int) error {
	var err error
	if v.ids, err = normalList("ids", f.GetIds(), maxValues); err != nil {
		return err
	}
	if v.models, err = normalList("models", f.GetModels(), maxValues); err != nil {
		return err
	}
	if v.zones, err = normalList("zones", f.GetZones(), maxValues); err != nil {
		return err
	}
	if n := len(f.GetRoles()); n > maxValues {
		return fmt.Errorf("filter.roles has %d values: at most %d are allowed", n, maxValues)
	}
	for _, r := range f.GetRoles() {
		if r < loadmonitorpb.Role_ROLE_REGULAR || r > loadmonitorpb.Role_ROLE_DECODE {
			return fmt.Errorf("filter.roles names %s: want ROLE_REGULAR, ROLE_PREFILL or ROLE_DECODE", r)
		}
		v.roles |= 1 << r
	}
	return nil
}

func normalList(name string, values []string, maxValues int) ([]string, error) {
	if len(values) > maxValues {
		return nil, fmt.Errorf("filter.%s has %d values: at most %d are allowed", name, len(values), maxValues)
	}
	size := 0
	for _, s := range values {
		size += len(s)
	}
	if size > maxFilterBytes {
		return nil, fmt.Errorf("filter.%s has %d bytes: at most %d are allowed", name, size, maxFilterBytes)
	}
	return slices.Compact(slices.Sorted(slices.Values(values))), nil
}

// hash names the view. A collision would hand one watcher the bytes of another view, hence a cryptographic hash; 96 bits
// of it are plenty for views that live at one time and keep the name short, as it stands in every frame.
func (v *view) hash() string {
	h := sha256.New()
	flags := []byte{v.roles, 0}
	for i, on := range []bool{v.ranks, v.fullOnly, v.noMarks} {
		if on {
			flags[1] |= 1 << i
		}
	}
	h.Write(flags)
	for _, list := range [][]string{v.ids, v.models, v.zones} {
		var b []byte
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, s := range list {
			b = binary.AppendUvarint(b, uint64(len(s)))
			b = append(b, s...)
		}
		h.Write(b)
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:12])
}

// all reports whether the view holds the whole fleet.
func (v *view) all() bool {
	return len(v.ids) == 0 && len(v.models) == 0 && len(v.zones) == 0 && v.roles == 0
}

// matches reports whether the worker is in the view: each list that is not empty contains the worker's value, of its
// models one.
func (v *view) matches(w *load.Worker) bool {
	if v.roles != 0 && v.roles&(1<<w.Role) == 0 {
		return false
	}
	if len(v.zones) > 0 && !contains(v.zones, w.Zone) {
		return false
	}
	if len(v.models) > 0 && !slices.ContainsFunc(w.Models, func(m string) bool { return contains(v.models, m) }) {
		return false
	}
	return len(v.ids) == 0 || contains(v.ids, w.ID)
}

// contains searches a sorted list; the usual filter has a value or two, where looking at each is faster.
func contains(sorted []string, s string) bool {
	if len(sorted) <= 4 {
		return slices.Contains(sorted, s)
	}
	_, found := slices.BinarySearch(sorted, s)
	return found
}
