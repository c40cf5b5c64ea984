package watch

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// maxPaged is how many snapshots are kept for their pages at a time. A new one displaces the one not used for longest.
const maxPaged = 8

// pageToken says where a page begins. Clients see it as an opaque string.
type pageToken struct {
	epoch   string
	version uint64
	from    int // position of the first worker
	view    string
}

// pageTokenFormat is the first byte of a token, so that another format can be told apart.
const pageTokenFormat = 1

func (t pageToken) String() string {
	b := []byte{pageTokenFormat}
	b = binary.AppendUvarint(b, t.version)
	b = binary.AppendUvarint(b, uint64(t.from))
	b = binary.AppendUvarint(b, uint64(len(t.view)))
	b = append(b, t.view...)
	b = append(b, t.epoch...)
	return base64.RawURLEncoding.EncodeToString(b)
}

var errNotPageToken = errors.New("page_token is not one of this monitor: take it from next_page_token as it is")

func parsePageToken(s string) (pageToken, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) == 0 || b[0] != pageTokenFormat {
		return pageToken{}, errNotPageToken
	}
	b = b[1:]
	var numbers [3]uint64
	for i := range numbers {
		n, used := binary.Uvarint(b)
		if used <= 0 {
			return pageToken{}, errNotPageToken
		}
		numbers[i], b = n, b[used:]
	}
	version, from, viewLen := numbers[0], numbers[1], numbers[2]
	if from > 1<<31 || viewLen > uint64(len(b)) {
		return pageToken{}, errNotPageToken
	}
	return pageToken{epoch: string(b[viewLen:]), version: version, from: int(from), view: string(b[:viewLen])}, nil
}

// pages keeps snapshots alive whose pages are being read.
type pages struct {
	lifetime time.Duration // immutable

	mu   sync.Mutex
	kept []*paged // guarded by mu; the one used last is last
}

type paged struct {
	snap *load.Snapshot
	drop *time.Timer
}

// keep makes the snapshot available to find until nobody asked for it for the lifetime.
func (p *pages) keep(snap *load.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.useLocked(snap.Epoch, snap.Version) != nil {
		return
	}
	if len(p.kept) == maxPaged {
		p.kept[0].drop.Stop()
		p.kept = slices.Delete(p.kept, 0, 1)
	}
	// Without its memo, so that encoded frames do not live as long as pages.
	k := &paged{snap: &load.Snapshot{
		Epoch: snap.Epoch, Version: snap.Version, CapturedAt: snap.CapturedAt, Captured: snap.Captured,
		State: snap.State, Summary: snap.Summary, Workers: snap.Workers,
	}}
	k.drop = time.AfterFunc(p.lifetime, func() { p.remove(k) })
	p.kept = append(p.kept, k)
}

// find returns a snapshot that was kept, or nil.
func (p *pages) find(epoch string, version uint64) *load.Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := p.useLocked(epoch, version); k != nil {
		return k.snap
	}
	return nil
}

func (p *pages) useLocked(epoch string, version uint64) *paged {
	i := slices.IndexFunc(p.kept, func(k *paged) bool { return k.snap.Epoch == epoch && k.snap.Version == version })
	if i < 0 {
		return nil
	}
	k := p.kept[i]
	k.drop.Reset(p.lifetime)
	p.kept = append(slices.Delete(p.kept, i, i+1), k)
	return k
}

func (p *pages) remove(k *paged) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = slices.DeleteFunc(p.kept, func(o *paged) bool { return o == k })
}
