package watch

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/loadmonitor/loadmonitor/load"
)

// pieceBytes is how finely it is seen that a watcher takes a large frame.
const pieceBytes = 64 << 10

// shared is an encoded WatchResponse without now_us. Everybody who sends it reads the same bytes; nobody changes them.
type shared struct {
	bytes  []byte
	whole  mem.Buffer // of a small frame
	pieces [][]byte   // of a large one; nil: it is small
}

func share(frames [][]byte) []*shared {
	list := make([]*shared, len(frames))
	for i, b := range frames {
		s := &shared{bytes: b, whole: mem.SliceBuffer(b)}
		for rest := b; len(b) > pieceBytes && len(rest) > 0; {
			n := min(pieceBytes, len(rest))
			s.pieces = append(s.pieces, rest[:n:n])
			rest = rest[n:]
		}
		list[i] = s
	}
	return list
}

// frame is one WatchResponse on its way to one watcher, encoded already. It never changes, because whoever looks on at
// what grpc sends may keep it.
type frame struct {
	shared *shared
	taken  *progress // told whenever a piece has left; nil: nobody asks

	now   [nowSize]byte // field now_us, the one that differs from send to send
	nowN  int
	small [2]mem.Buffer // now_us and the rest of a small frame
}

func newFrame(s *shared, now load.Instant, taken *progress) *frame {
	f := &frame{shared: s, taken: taken}
	f.nowN = len(appendUint(f.now[:0], frameNowUs, uint64(now)))
	f.small = [2]mem.Buffer{mem.SliceBuffer(f.now[:f.nowN]), s.whole}
	return f
}

// size returns the length of the encoded message in bytes.
func (f *frame) size() int { return f.nowN + len(f.shared.bytes) }

// buffers returns the encoded message without copying it.
func (f *frame) buffers() mem.BufferSlice {
	if f.shared.pieces == nil || f.taken == nil {
		return f.small[:]
	}
	list := make(mem.BufferSlice, 0, 1+len(f.shared.pieces))
	list = append(list, f.small[0])
	for i := range f.shared.pieces {
		list = append(list, mem.NewBuffer(&f.shared.pieces[i], f.taken))
	}
	return list
}

// progress remembers when a watcher last took something. grpc gives each piece of a large frame back when it has left
// for the connection, which is the only sign of life while SendMsg is blocked: it stands in for the pool that the piece
// would return to.
type progress struct {
	clock func() time.Duration
	at    atomic.Int64 // a reading of clock
}

// Get is never called: it only completes mem.BufferPool.
func (p *progress) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// Put notes that a piece has left. The piece itself is shared, so it goes to no pool.
func (p *progress) Put(*[]byte) { p.at.Store(int64(p.clock())) }

// codec passes frames through as they are and leaves everything else to grpc's own codec.
type codec struct{ encoding.CodecV2 }

// Codec returns the codec that a server of this package must be built with, as grpc.ForceServerCodecV2(watch.Codec()):
// it sends the frames of a Watch without marshalling them again and treats all other messages as grpc's stock codec does.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return f.buffers(), nil
	}
	return c.CodecV2.Marshal(v)
}
