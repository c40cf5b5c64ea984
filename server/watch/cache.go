package watch

import (
	"sync"
	"sync/atomic"

	"github.com/loadmonitor/loadmonitor/load"
)

// maxCachedBytes bounds the frames that one snapshot keeps. Watchers with the same view and base are at the same few
// bases; when thousands have views of their own, what does not fit is encoded for the one who asks.
const maxCachedBytes = 64 << 20

// bundle is one encoded update, or a heartbeat: what goes out to every watcher with the same view and base. It never
// changes.
type bundle struct {
	frames []*shared // none: nothing but the version moved, which can wait for the next heartbeat
	size   int       // bytes that it adds to what its snapshot keeps
}

func (b *bundle) empty() bool { return len(b.frames) == 0 }

func newBundle(frames [][]byte) *bundle {
	b := &bundle{frames: share(frames)}
	for _, f := range frames {
		b.size += len(f)
	}
	return b
}

// memo is what this package keeps on a snapshot: the bundles made from it so far, and how many workers its views have.
type memo struct {
	mu      sync.Mutex
	bundles map[bundleKey]*bundleCell // guarded by mu
	counts  map[string]load.Summary   // guarded by mu; by the names of filtered views

	bytes  atomic.Int64 // taken by bundles
	recent atomic.Pointer[bundleCell]
}

// bundleKey names the bytes of a bundle: with the snapshot it says everything that they depend on.
type bundleKey struct {
	view string
	base uint64
	kind bundleKind
}

type bundleKind uint8

const (
	kindUpdate bundleKind = iota
	kindAdvance
	kindHeartbeat
)

// bundleCell is made under the lock and filled outside it, by one of those who want it while the others wait.
type bundleCell struct {
	key  bundleKey
	once sync.Once
	b    *bundle
}

func newMemo() any { return &memo{bundles: make(map[bundleKey]*bundleCell)} }

func memoOf(s *load.Snapshot) *memo { return s.Memo.Get(newMemo).(*memo) }

// updateFrames returns the frames that bring a reader of the view from base, which baseOf returned, to the snapshot; none
// when they would hold nothing, which is the usual case for a filtered view and takes no look at the whole fleet.
func (s *Service) updateFrames(snap *load.Snapshot, base uint64, v *view) *bundle {
	return s.bundle(snap, bundleKey{v.name, base, kindUpdate}, func() *bundle {
		u := delta(snap, base, v)
		switch {
		case u.empty():
			return &bundle{}
		case base != 0 && v.fullOnly:
			return &bundle{frames: s.updateFrames(snap, 0, v).frames}
		}
		return s.encode(snap, &u, v)
	})
}

// advanceFrames returns the frames for a reader to whom updateFrames has nothing to say but the version.
func (s *Service) advanceFrames(snap *load.Snapshot, base uint64, v *view) *bundle {
	if v.fullOnly {
		return s.updateFrames(snap, 0, v)
	}
	return s.bundle(snap, bundleKey{v.name, base, kindAdvance}, func() *bundle {
		return s.encode(snap, &update{base: base}, v)
	})
}

// heartbeatFrames returns the frame for a reader that holds the version and learns nothing new.
func (s *Service) heartbeatFrames(snap *load.Snapshot, held uint64, v *view) *bundle {
	return s.bundle(snap, bundleKey{v.name, held, kindHeartbeat}, func() *bundle {
		s.counters.framesEncoded.Add(1)
		return newBundle([][]byte{encodeHeartbeat(snap.Epoch, held, v, s.heartbeatMs)})
	})
}

func (s *Service) encode(snap *load.Snapshot, u *update, v *view) *bundle {
	frames := encodeUpdate(snap, u, v, s.summary(snap, u.base, v), s.heartbeatMs, s.maxFrameBytes)
	s.counters.framesEncoded.Add(uint64(len(frames)))
	return newBundle(frames)
}

func (s *Service) bundle(snap *load.Snapshot, key bundleKey, build func() *bundle) *bundle {
	m := memoOf(snap)
	cell, hit := m.cell(key)
	if hit {
		s.counters.cacheHits.Add(1)
	}
	if cell == nil {
		return build()
	}
	cell.once.Do(func() {
		cell.b = build()
		m.bytes.Add(int64(cell.b.size))
	})
	return cell.b
}

// cell returns the cell of the key, and whether somebody asked for it before; nil when the snapshot keeps enough.
func (m *memo) cell(key bundleKey) (cell *bundleCell, hit bool) {
	// Most watchers want what the one before them wanted.
	if cell = m.recent.Load(); cell != nil && cell.key == key {
		return cell, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if cell, hit = m.bundles[key]; !hit {
		if m.bytes.Load() >= maxCachedBytes {
			return nil, false
		}
		cell = &bundleCell{key: key}
		m.bundles[key] = cell
	}
	m.recent.Store(cell)
	return cell, hit
}

// counted returns the summary of a view, if it was made.
func (m *memo) counted(v *view) (load.Summary, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum, ok := m.counts[v.name]
	return sum, ok
}

// countBytes is what a kept summary takes, about.
const countBytes = 128

// keepCount keeps the summary of a view, unless the snapshot keeps enough.
func (m *memo) keepCount(v *view, sum load.Summary) {
	if m.bytes.Load() >= maxCachedBytes {
		return
	}
	m.bytes.Add(countBytes)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts == nil {
		m.counts = make(map[string]load.Summary)
	}
	m.counts[v.name] = sum
}
