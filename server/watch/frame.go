package watch

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/loadmonitor/loadmonitor/load"
)

// Field numbers of loadmonitor.v1.WatchResponse and loadmonitor.v1.Summary.
const (
	frameEpoch       protowire.Number = 1
	frameView        protowire.Number = 2
	frameBaseVersion protowire.Number = 3
	frameVersion     protowire.Number = 4
	frameLast        protowire.Number = 5
	frameNowUs       protowire.Number = 6
	frameSummary     protowire.Number = 7
	frameChanged     protowire.Number = 8
	frameRemoved     protowire.Number = 9
	frameRefreshed   protowire.Number = 10
	frameRefreshedUs protowire.Number = 11
	frameHeartbeatMs protowire.Number = 12

	summaryState       protowire.Number = 1
	summaryWorkers     protowire.Number = 2
	summaryFresh       protowire.Number = 3
	summaryStale       protowire.Number = 4
	summaryMissing     protowire.Number = 5
	summaryIncomplete  protowire.Number = 6
	summaryUnreachable protowire.Number = 7
	summaryComplete    protowire.Number = 8
)

// nowSize is the most that now_us takes: it is added to each frame when it is sent.
const nowSize = 1 + 10

// packedHead is the most that tag and length of a packed list take.
const packedHead = 1 + 5

// framer writes one update as frames that each stay within max bytes, now_us included (rule W6). The order of the fields
// is free, so what every frame repeats stands first and what only the last one has is written at its end.
type framer struct {
	max  int
	head []byte // epoch, view, base, version, heartbeat
	tail []byte // last and summary
	rest int    // bytes of content that are still to come, for sizing buffers

	out [][]byte
	// The frame in the making.
	body      []byte
	removed   []uint32
	refreshed []mark
	lists     int // bytes that removed and refreshed will take, without their heads
}

// encodeUpdate writes the update from u.base to the snapshot's version. Each frame lacks now_us.
func encodeUpdate(s *load.Snapshot, u *update, v *view, sum load.Summary, heartbeatMs uint32, maxBytes int) [][]byte {
	f := framer{
		max:  maxBytes,
		head: appendHead(nil, s.Epoch, v, u.base, s.Version, heartbeatMs),
		tail: appendMessage(appendUint(nil, frameLast, 1), frameSummary, func(b []byte) []byte {
			return appendSummary(b, s.State, sum)
		}),
	}
	for _, e := range u.changed {
		f.rest += protowire.SizeBytes(len(encoded(e.WorkerStatus).of(v))) + 1
	}
	f.rest += listsSize(u)
	for _, e := range u.changed {
		b := encoded(e.WorkerStatus).of(v)
		f.room(protowire.SizeBytes(len(b)) + 1)
		f.body = protowire.AppendTag(f.body, frameChanged, protowire.BytesType)
		f.body = protowire.AppendBytes(f.body, b)
	}
	for _, handle := range u.removed {
		f.lists += f.room(protowire.SizeVarint(uint64(handle)))
		f.removed = append(f.removed, handle)
	}
	for _, m := range u.marks {
		f.lists += f.room(protowire.SizeVarint(uint64(m.handle)) + protowire.SizeVarint(uint64(m.at)))
		f.refreshed = append(f.refreshed, m)
	}
	f.begin()
	f.finish(f.tail)
	return f.out
}

// encodeHeartbeat writes the frame that says "still there" to a watcher that holds the version.
func encodeHeartbeat(epoch string, version uint64, v *view, heartbeatMs uint32) []byte {
	return appendUint(appendHead(nil, epoch, v, version, version, heartbeatMs), frameLast, 1)
}

// room makes sure that n more bytes of content fit into the frame in the making and returns n. A single worker larger
// than a whole frame gets a frame of its own: it cannot be cut.
func (f *framer) room(n int) int {
	if f.begin(); f.size()+n > f.max && f.size() > f.size0() {
		f.finish(nil)
		f.begin()
	}
	f.rest -= n
	return n
}

// begin starts a frame unless one is in the making.
func (f *framer) begin() {
	if f.body == nil {
		f.body = make([]byte, 0, min(f.max, len(f.head)+len(f.tail)+3*packedHead+max(0, f.rest)))
		f.body = append(f.body, f.head...)
	}
}

// size returns the most that the frame in the making can take as it is.
func (f *framer) size() int { return len(f.body) + f.lists + 3*packedHead + len(f.tail) + nowSize }

// size0 returns what size is for a frame without content.
func (f *framer) size0() int { return len(f.head) + 3*packedHead + len(f.tail) + nowSize }

// finish ends the frame in the making.
func (f *framer) finish(tail []byte) {
	b := f.body
	if len(f.removed) > 0 {
		b = appendPacked(b, frameRemoved, f.removed, func(handle uint32) uint64 { return uint64(handle) })
	}
	if len(f.refreshed) > 0 {
		b = appendPacked(b, frameRefreshed, f.refreshed, func(m mark) uint64 { return uint64(m.handle) })
		b = appendPacked(b, frameRefreshedUs, f.refreshed, func(m mark) uint64 { return uint64(m.at) })
	}
	f.out = append(f.out, append(b, tail...))
	f.body, f.removed, f.refreshed, f.lists = nil, f.removed[:0], f.refreshed[:0], 0
}

func listsSize(u *update) int {
	n := 0
	for _, handle := range u.removed {
		n += protowire.SizeVarint(uint64(handle))
	}
	for _, m := range u.marks {
		n += protowire.SizeVarint(uint64(m.handle)) + protowire.SizeVarint(uint64(m.at))
	}
	return n
}

func appendHead(b []byte, epoch string, v *view, base, version uint64, heartbeatMs uint32) []byte {
	b = appendString(b, frameEpoch, epoch)
	b = appendString(b, frameView, v.name)
	b = appendUint(b, frameBaseVersion, base)
	b = appendUint(b, frameVersion, version)
	return appendUint(b, frameHeartbeatMs, uint64(heartbeatMs))
}

func appendSummary(b []byte, state load.FleetState, sum load.Summary) []byte {
	b = appendUint(b, summaryState, uint64(state))
	b = appendUint(b, summaryWorkers, uint64(sum.Workers))
	b = appendUint(b, summaryFresh, uint64(sum.Fresh))
	b = appendUint(b, summaryStale, uint64(sum.Stale))
	b = appendUint(b, summaryMissing, uint64(sum.Missing))
	b = appendUint(b, summaryIncomplete, uint64(sum.Incomplete))
	b = appendUint(b, summaryUnreachable, uint64(sum.Unreachable))
	if sum.Complete() {
		b = appendUint(b, summaryComplete, 1)
	}
	return b
}

func appendPacked[T any](b []byte, number protowire.Number, list []T, value func(T) uint64) []byte {
	size := 0
	for _, x := range list {
		size += protowire.SizeVarint(value(x))
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, number, protowire.BytesType), uint64(size))
	for _, x := range list {
		b = protowire.AppendVarint(b, value(x))
	}
	return b
}
