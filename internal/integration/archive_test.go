package integration

import (
	"context"
	"fmt"
	"sync"

	"github.com/loadmonitor/loadmonitor/aggregator"
	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/server/watch"
)

// archive is the aggregator as its readers see it. It keeps every snapshot that any of them saw.
type archive struct {
	*aggregator.Aggregator
	pinned *pinned
	reader *watch.Service // answers from pinned

	mu       sync.Mutex
	seen     map[uint64]*load.Snapshot // by version
	pictures map[uint64]*picture       // of those that were asked for
}

// pinned shows one snapshot of the archive as if it were the newest.
type pinned struct {
	*aggregator.Aggregator
	snap *load.Snapshot // guarded by archive.mu
}

func (p *pinned) Current() *load.Publication { return &load.Publication{Snapshot: p.snap} }

func newArchive(a *aggregator.Aggregator) (*archive, error) {
	p := &pinned{Aggregator: a}
	reader, err := watch.New(watch.Options{Source: p})
	if err != nil {
		return nil, err
	}
	return &archive{
		Aggregator: a, pinned: p, reader: reader, seen: make(map[uint64]*load.Snapshot), pictures: make(map[uint64]*picture),
	}, nil
}

func (a *archive) Current() *load.Publication {
	p := a.Aggregator.Current()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen[p.Snapshot.Version] = p.Snapshot
	return p
}

// at returns what GetSnapshot answers without a filter when the version is the newest.
func (a *archive) at(version uint64) (*picture, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.pictures[version]; p != nil {
		return p, nil
	}
	all, err := a.readLocked(version)
	if err != nil {
		return nil, err
	}
	p := pictureOf(all)
	a.pictures[version] = p
	return p, nil
}

// unchanged reads every version that was asked for once more: a snapshot never changes (rule SNAP1).
func (a *archive) unchanged() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for version, p := range a.pictures {
		again, err := a.readLocked(version)
		if err != nil {
			return err
		}
		if d := p.differs(again); d != "" {
			return fmt.Errorf("the snapshot of version %d changed:\n%s", version, d)
		}
	}
	return nil
}

func (a *archive) readLocked(version uint64) (*loadmonitorpb.GetSnapshotResponse, error) {
	if a.seen[version] == nil {
		return nil, fmt.Errorf("version %d was never read from the aggregator", version)
	}
	a.pinned.snap = a.seen[version]
	return a.reader.GetSnapshot(context.Background(), &loadmonitorpb.GetSnapshotRequest{})
}
