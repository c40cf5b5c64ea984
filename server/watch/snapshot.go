package watch

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// GetSnapshot returns the newest snapshot, ranks included, in pages that stay within the bound of a frame. All pages of a
// snapshot come from the same version, and the same version always gives the same bytes (rule SNAP1).
func (s *Service) GetSnapshot(_ context.Context, req *loadmonitorpb.GetSnapshotRequest) (*loadmonitorpb.GetSnapshotResponse, error) {
	v := &view{ranks: true}
	if err := v.setFilter(req.GetFilter(), s.maxValues); err != nil {
		return nil, refuse(codes.InvalidArgument, "%w", err)
	}
	v.name = v.hash()

	snap := s.source.Current().Snapshot
	from := 0
	if req.GetPageToken() != "" {
		t, err := parsePageToken(req.GetPageToken())
		if err != nil {
			return nil, refuse(codes.InvalidArgument, "%w", err)
		}
		if t.view != v.name {
			return nil, refuse(codes.InvalidArgument, "page_token belongs to another filter: repeat the filter of the first page")
		}
		if t.epoch != snap.Epoch || t.version != snap.Version {
			snap = s.pages.find(t.epoch, t.version)
		}
		if snap == nil || t.from > snap.Workers.Len() {
			s.counters.pagesAborted.Add(1)
			return nil, refuse(codes.Aborted, "%w", errPageGone)
		}
		from = t.from
	}
	resp, next := page(snap, v, from, s.maxFrameBytes)
	if next > 0 {
		s.pages.keep(snap)
		resp.SetNextPageToken(pageToken{snap.Epoch, snap.Version, next, v.name}.String())
	}
	s.counters.pagesSent.Add(1)
	return resp, nil
}

var errPageGone = errors.New("the snapshot of this page_token is gone: start over without a token")

// page builds the page that begins at worker from and returns where the next one begins; 0: this is the last.
func page(snap *load.Snapshot, v *view, from, maxBytes int) (*loadmonitorpb.GetSnapshotResponse, int) {
	resp := loadmonitorpb.GetSnapshotResponse_builder{
		Epoch:            snap.Epoch,
		Version:          snap.Version,
		CapturedAtUnixMs: snap.CapturedAt.UnixMilli(),
		CapturedUs:       uint64(snap.Captured),
		Summary:          summaryProto(snap.State, v.summary(snap)),
	}.Build()
	token := pageToken{snap.Epoch, snap.Version, snap.Workers.Len(), v.name}.String()
	size := proto.Size(resp) + 1 + protowire.SizeBytes(len(token))

	var workers []*loadmonitorpb.Worker
	next := 0
	for i := from; i < snap.Workers.Len(); i++ {
		e := snap.Workers.At(i)
		if !v.matches(e.Worker) {
			continue
		}
		w := toProto(e)
		size += 1 + protowire.SizeBytes(proto.Size(w))
		// A page has one worker at least, however large it is: otherwise there would be no way past it.
		if size > maxBytes && len(workers) > 0 {
			next = i
			break
		}
		workers = append(workers, w)
	}
	resp.SetWorkers(workers)
	return resp, next
}
