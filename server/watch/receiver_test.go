package watch

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

// receiver rebuilds the view from frames alone, word for word as the contract says and with nothing of this package. It
// is what an implementation in another language has to do.
type receiver struct {
	epoch, view string
	version     uint64
	summary     *loadmonitorpb.Summary
	workers     map[uint32]*loadmonitorpb.Worker // by handle

	pending []*loadmonitorpb.WatchResponse // frames of the update that is not complete yet
	updates int
	beats   int
}

// take applies one frame. An error means that a real receiver would open a new stream without resume.
func (r *receiver) take(m *loadmonitorpb.WatchResponse) error {
	if len(r.pending) > 0 {
		p := r.pending[0]
		if m.GetEpoch() != p.GetEpoch() || m.GetBaseVersion() != p.GetBaseVersion() || m.GetVersion() != p.GetVersion() {
			return fmt.Errorf("frame of %s %d→%d within update %s %d→%d", m.GetEpoch(), m.GetBaseVersion(), m.GetVersion(),
				p.GetEpoch(), p.GetBaseVersion(), p.GetVersion())
		}
	}
	r.pending = append(r.pending, m)
	if !m.GetLast() {
		if m.HasSummary() {
			return fmt.Errorf("summary before the last frame")
		}
		return nil
	}
	frames := r.pending
	r.pending = nil

	base := m.GetBaseVersion()
	if base == 0 {
		r.workers = make(map[uint32]*loadmonitorpb.Worker)
		r.epoch = m.GetEpoch()
	} else if m.GetEpoch() != r.epoch || base > r.version {
		return fmt.Errorf("update from %s %d, but the receiver holds %s %d", m.GetEpoch(), base, r.epoch, r.version)
	}
	if m.GetVersion() < base {
		return fmt.Errorf("update from %d back to %d", base, m.GetVersion())
	}
	r.view, r.version = m.GetView(), m.GetVersion()

	content := false
	for _, f := range frames {
		for _, w := range f.GetChanged() {
			r.workers[w.GetHandle()] = proto.CloneOf(w)
			content = true
		}
		for _, handle := range f.GetRemoved() {
			delete(r.workers, handle)
			content = true
		}
	}
	for _, f := range frames {
		if len(f.GetRefreshed()) != len(f.GetRefreshedUs()) {
			return fmt.Errorf("%d handles and %d times in the marks", len(f.GetRefreshed()), len(f.GetRefreshedUs()))
		}
		for i, handle := range f.GetRefreshed() {
			w := r.workers[handle]
			if w == nil {
				return fmt.Errorf("mark for handle %d, which is not in the view", handle)
			}
			at := f.GetRefreshedUs()[i]
			w.SetOldestReceivedUs(max(w.GetOldestReceivedUs(), at))
			for _, rank := range w.GetRanks() {
				if rank.GetFreshness() == loadmonitorpb.Freshness_FRESHNESS_FRESH {
					rank.SetReceivedUs(max(rank.GetReceivedUs(), at))
				}
			}
			content = true
		}
	}
	switch {
	case m.HasSummary():
		r.summary = m.GetSummary()
		r.updates++
	case base == m.GetVersion() && !content:
		r.beats++
	default:
		return fmt.Errorf("update %d→%d without a summary", base, m.GetVersion())
	}
	return nil
}

// sorted returns the workers by id.
func (r *receiver) sorted() []*loadmonitorpb.Worker {
	return slices.SortedFunc(maps.Values(r.workers), func(a, b *loadmonitorpb.Worker) int { return cmp.Compare(a.GetId(), b.GetId()) })
}

// byID returns a worker of the view, or nil.
func (r *receiver) byID(id string) *loadmonitorpb.Worker {
	for _, w := range r.workers {
		if w.GetId() == id {
			return w
		}
	}
	return nil
}
