package client

import (
	"fmt"
	"slices"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

// maxWorkers bounds what one update can make the client hold (rule LIFE2).
const maxWorkers = 1 << 20

// frames turns the frames of one stream into pictures: a pure function of the picture that was held when the stream was
// opened and of the frames since. It follows the watch contract, and each error wraps ErrContract. After an error it must
// not be used again.
type frames struct {
	held    *picture // nil: nothing yet
	resumed bool     // the stream was asked to continue from held
	view    string   // of this stream; empty before its first frame
	updates int      // completed on this stream, heartbeats included

	pending *update // nil between updates
}

// update collects the frames of one update until the last one is there.
type update struct {
	epoch         string
	base, version uint64

	changed []*Status
	removed []uint32
	marks   []mark
}

func (u *update) content() bool { return len(u.changed)+len(u.removed)+len(u.marks) > 0 }

// outcome is what a frame led to.
type outcome struct {
	picture *picture // the one to hold from now on; nil: the update goes on with the next frame
	full    bool     // it replaced everything
	resumed bool     // it is the first of a stream that continues from what was held
}

// take applies the next frame.
func (f *frames) take(r *loadmonitorpb.WatchResponse) (outcome, error) {
	if err := f.check(r); err != nil {
		return outcome{}, err
	}
	if f.pending == nil {
		if err := f.begin(r); err != nil {
			return outcome{}, err
		}
	}
	u := f.pending
	if len(u.changed)+len(r.GetChanged()) > maxWorkers || len(u.removed)+len(r.GetRemoved()) > maxWorkers ||
		len(u.marks)+len(r.GetRefreshed()) > maxWorkers {
		return outcome{}, broken("an update is about more than %d workers", maxWorkers)
	}
	u.changed = slices.Grow(u.changed, len(r.GetChanged()))
	u.marks = slices.Grow(u.marks, len(r.GetRefreshed()))
	for _, w := range r.GetChanged() {
		if w.GetId() == "" {
			return outcome{}, broken("worker with handle %d has no id", w.GetHandle())
		}
		u.changed = append(u.changed, statusFromProto(w))
	}
	u.removed = append(u.removed, r.GetRemoved()...)
	us := r.GetRefreshedUs()
	for i, h := range r.GetRefreshed() {
		u.marks = append(u.marks, mark{h, instantFromProto(us[i])})
	}
	if !r.GetLast() {
		return outcome{}, nil
	}
	return f.complete(r)
}

// check tests what must hold for every frame by itself and within its stream and update.
func (f *frames) check(r *loadmonitorpb.WatchResponse) error {
	switch {
	case r.GetEpoch() == "":
		return broken("frame without an epoch")
	case r.GetVersion() == 0:
		return broken("frame with version 0")
	case r.GetBaseVersion() > r.GetVersion():
		return broken("base version %d is above version %d", r.GetBaseVersion(), r.GetVersion())
	case len(r.GetRefreshed()) != len(r.GetRefreshedUs()):
		return broken("%d refreshed handles with %d times", len(r.GetRefreshed()), len(r.GetRefreshedUs()))
	case f.view != "" && r.GetView() != f.view:
		return broken("view changed within the stream from %q to %q", f.view, r.GetView())
	}
	if u := f.pending; u != nil && (r.GetEpoch() != u.epoch || r.GetBaseVersion() != u.base || r.GetVersion() != u.version) {
		return broken("update %s %d..%d is not complete, but a frame of %s %d..%d follows",
			u.epoch, u.base, u.version, r.GetEpoch(), r.GetBaseVersion(), r.GetVersion())
	}
	return nil
}

// begin opens an update with its first frame.
func (f *frames) begin(r *loadmonitorpb.WatchResponse) error {
	base, version := r.GetBaseVersion(), r.GetVersion()
	known := f.held != nil && f.held.epoch == r.GetEpoch()
	switch {
	case known && version < f.held.version:
		return broken("version went back from %d to %d", f.held.version, version)
	case base == 0:
		// A full picture needs nothing.
	case !known:
		return broken("first update of epoch %q has base version %d: want 0", r.GetEpoch(), base)
	case base > f.held.version:
		return broken("base version %d is above the held version %d", base, f.held.version)
	case f.updates == 0 && !f.resumed:
		return broken("first update of a stream without resume has base version %d: want 0", base)
	case r.GetView() != f.held.view:
		return broken("update of view %q continues from view %q", r.GetView(), f.held.view)
	}
	f.view = r.GetView()
	f.pending = &update{epoch: r.GetEpoch(), base: base, version: version}
	return nil
}

// complete applies the pending update, of which r is the last frame.
func (f *frames) complete(r *loadmonitorpb.WatchResponse) (outcome, error) {
	u := f.pending
	out := outcome{full: u.base == 0, resumed: u.base != 0 && f.updates == 0}
	f.pending = nil
	f.updates++

	if u.base == u.version { // so it is the held version too
		if u.content() {
			return outcome{}, broken("version %d has content of its own above base version %d", u.version, u.base)
		}
		out.picture = f.held
		return out, nil
	}
	if !r.HasSummary() {
		return outcome{}, broken("update %d..%d has no summary", u.base, u.version)
	}

	var next *picture
	var err error
	if out.full {
		next, err = replaced(f.held, u.epoch, u.changed, u.marks)
	} else {
		next, err = f.held.patched(u.changed, u.removed, u.marks)
	}
	if err != nil {
		return outcome{}, broken("%w", err)
	}
	next.epoch, next.view, next.version = u.epoch, r.GetView(), u.version
	next.state = stateFromProto(r.GetSummary().GetState())
	next.summary = summaryFromProto(r.GetSummary())
	if err := agree(next, r.GetSummary().GetComplete()); err != nil {
		return outcome{}, err
	}
	f.held = next
	out.picture = next
	return out, nil
}

// agree compares the summary with the workers that it counts. Only what decides on completeness is compared, so that a
// newer monitor may know more words for freshness than this client.
func agree(p *picture, complete bool) error {
	if p.summary.Workers != p.tally.Workers || p.summary.Fresh != p.tally.Fresh {
		return broken("summary of version %d counts %d workers, %d fresh; the view holds %d, %d fresh",
			p.version, p.summary.Workers, p.summary.Fresh, p.tally.Workers, p.tally.Fresh)
	}
	if complete != p.summary.Complete() {
		return broken("summary of version %d says complete is %t with %d of %d workers fresh",
			p.version, complete, p.summary.Fresh, p.summary.Workers)
	}
	return nil
}

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrContract, fmt.Errorf(format, args...))
}
