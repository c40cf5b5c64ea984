package watch

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// readPages asks for page after page.
func readPages(t *testing.T, s *Service, f *loadmonitorpb.Filter) []*loadmonitorpb.GetSnapshotResponse {
	t.Helper()
	var pages []*loadmonitorpb.GetSnapshotResponse
	req := loadmonitorpb.GetSnapshotRequest_builder{Filter: f}.Build()
	for {
		p, err := s.GetSnapshot(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, p)
		if p.GetNextPageToken() == "" {
			return pages
		}
		req.SetPageToken(p.GetNextPageToken())
	}
}

func TestGetSnapshot_HoldsTheWholePublication(t *testing.T) {
	t.Parallel()
	f := newFleet()
	f.report("b", 1, 2)
	f.report("a", 3)
	f.publish()
	f.now += 1_000_000
	f.refresh("a")
	snap := f.publish()
	svc := newService(t, Options{Source: newSource(snap)})
	got := readPages(t, svc, nil)
	if len(got) != 1 {
		t.Fatalf("%d pages", len(got))
	}
	a, b := snap.Workers.At(0), snap.Workers.At(1)
	want := loadmonitorpb.GetSnapshotResponse_builder{
		Epoch: "epoch-1", Version: 2, CapturedAtUnixMs: snap.CapturedAt.UnixMilli(), CapturedUs: uint64(snap.Captured),
		Summary: summaryProto(load.FleetReady, load.Summary{Workers: 2, Fresh: 2}), Workers: []*loadmonitorpb.Worker{toProto(a), toProto(b)},
	}.Build()
	if diff := cmp.Diff(want, got[0], protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if r := got[0].GetWorkers()[0]; r.GetOldestReceivedUs() != uint64(a.Refreshed) || r.GetRanks()[0].GetReceivedUs() != uint64(a.Refreshed) {
		t.Errorf("the refresh mark is not applied: %v", r)
	}
}

// Case I4, rule SNAP1: the same version gives the same bytes.
func TestGetSnapshot_SameVersionGivesSameBytes(t *testing.T) {
	t.Parallel()
	f := bigFleet(20)
	svc := newService(t, Options{Source: newSource(f.publish())})
	var first []byte
	for range 50 {
		b, err := proto.Marshal(readPages(t, svc, nil)[0])
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b
		}
		if !bytes.Equal(first, b) {
			t.Fatal("bytes differ")
		}
	}
}

func TestGetSnapshot_PagesBelongTogether(t *testing.T) {
	t.Parallel()
	f := newFleet()
	for i := range 300 {
		f.report(fmt.Sprintf("w%03d", i), 1, 2, 3)
		if i%3 == 0 {
			f.put(fmt.Sprintf("w%03d", i), func(ws *load.WorkerStatus) { ws.Worker.Zone = "z0" })
		}
	}
	const size = 4096
	for _, filter := range []*loadmonitorpb.Filter{nil, loadmonitorpb.Filter_builder{Zones: []string{"z0"}}.Build()} {
		src := newSource(f.publish())
		svc := newService(t, Options{Source: src, MaxFrameBytes: size})
		v := &view{}
		if err := v.setFilter(filter, 10); err != nil {
			t.Fatal(err)
		}
		want := v.summary(src.Current().Snapshot)
		version := f.version

		var ids []string
		req := loadmonitorpb.GetSnapshotRequest_builder{Filter: filter}.Build()
		pages := 0
		for {
			p, err := svc.GetSnapshot(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			pages++
			if n := proto.Size(p); n > size || (p.GetNextPageToken() != "" && n < size-400) {
				t.Errorf("page %d has %d bytes", pages, n)
			}
			if p.GetVersion() != version || p.GetSummary().GetWorkers() != uint32(want.Workers) {
				t.Errorf("page %d is of version %d with %d workers in its summary", pages, p.GetVersion(), p.GetSummary().GetWorkers())
			}
			for _, w := range p.GetWorkers() {
				ids = append(ids, w.GetId())
			}
			if p.GetNextPageToken() == "" {
				break
			}
			req.SetPageToken(p.GetNextPageToken())
			// The fleet goes on between the pages.
			f.report("w299", int64(pages))
			src.publish(f.publish())
		}
		if len(ids) != want.Workers || pages < 3 {
			t.Errorf("%d workers on %d pages, want %d", len(ids), pages, want.Workers)
		}
		for i := 1; i < len(ids); i++ {
			if ids[i] <= ids[i-1] {
				t.Errorf("%s after %s", ids[i], ids[i-1])
			}
		}
	}
}

func TestGetSnapshot_RefusesTokensItCannotFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		for i := range 100 {
			f.report(fmt.Sprintf("w%03d", i), 1, 2, 3)
		}
		src := newSource(f.publish())
		svc := newService(t, Options{Source: src, MaxFrameBytes: 4096})
		get := func(token string, filter *loadmonitorpb.Filter) (*loadmonitorpb.GetSnapshotResponse, error) {
			return svc.GetSnapshot(t.Context(), loadmonitorpb.GetSnapshotRequest_builder{PageToken: token, Filter: filter}.Build())
		}
		first, err := get("", nil)
		if err != nil {
			t.Fatal(err)
		}
		token := first.GetNextPageToken()
		for name, bad := range map[string]string{
			"not base64": "?", "empty": "AA", "cut": token[:4], "another format": "Ag" + token[2:],
			"a position beyond all": base64.RawURLEncoding.EncodeToString([]byte{1, 1, 255, 255, 255, 255, 255, 255, 1, 0}),
			"a length beyond all":   base64.RawURLEncoding.EncodeToString([]byte{1, 1, 1, 200, 1}),
		} {
			if _, err := get(bad, nil); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v, want INVALID_ARGUMENT", name, err)
			}
		}
		if _, err := get(token, loadmonitorpb.Filter_builder{Zones: []string{"z"}}.Build()); status.Code(err) != codes.InvalidArgument {
			t.Errorf("another filter: %v, want INVALID_ARGUMENT", err)
		}
		if _, err := get("", filtered(loadmonitorpb.Filter_builder{Roles: make([]loadmonitorpb.Role, 1)}).GetFilter()); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a bad filter: %v, want INVALID_ARGUMENT", err)
		}
		other := pageToken{"epoch-0", 1, 10, ""}
		v := &view{ranks: true}
		other.view = v.hash()
		if _, err := get(other.String(), nil); status.Code(err) != codes.Aborted {
			t.Errorf("another epoch: %v, want ABORTED", err)
		}

		f.report("w000", 9)
		src.publish(f.publish())
		for range 5 {
			time.Sleep(29 * time.Second)
			if _, err := get(token, nil); err != nil {
				t.Fatalf("a token that is used: %v", err)
			}
		}
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if _, err := get(token, nil); status.Code(err) != codes.Aborted {
			t.Errorf("after its lifetime: %v, want ABORTED", err)
		}
		if n := len(svc.pages.kept); n != 0 {
			t.Errorf("%d snapshots are kept", n)
		}
		wantMetrics(t, svc, map[string]float64{"snapshot_pages_aborted_total": 2})
	})
}

func TestPages_KeepABoundedNumberOfSnapshotsWithoutTheirFrames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.report("a", 1)
		p := pages{lifetime: time.Minute}
		var all []*load.Snapshot
		for range maxPaged + 3 {
			s := f.publish()
			s.Memo.Get(newMemo)
			all = append(all, s)
			p.keep(s)
			if len(all) > 1 {
				p.find(all[0].Epoch, all[0].Version) // used all the time
			}
		}
		if len(p.kept) != maxPaged {
			t.Errorf("%d are kept", len(p.kept))
		}
		for i, s := range all {
			kept := p.find(s.Epoch, s.Version)
			if want := i == 0 || i > 3; (kept != nil) != want {
				t.Errorf("snapshot %d kept: %v, want %v", i, kept != nil, want)
			} else if kept != nil && kept.Memo.Get(func() any { return nil }) != nil {
				t.Errorf("snapshot %d is kept with its frames", i)
			}
		}
	})
}

// A quiet fleet's token stays good: its snapshot is still the newest.
func TestGetSnapshot_TokenOfTheNewestVersionDoesNotAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		for i := range 100 {
			f.report(fmt.Sprintf("w%03d", i), 1, 2, 3)
		}
		svc := newService(t, Options{Source: newSource(f.publish()), MaxFrameBytes: 4096})
		first, err := svc.GetSnapshot(context.Background(), &loadmonitorpb.GetSnapshotRequest{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		req := loadmonitorpb.GetSnapshotRequest_builder{PageToken: first.GetNextPageToken()}.Build()
		if _, err := svc.GetSnapshot(context.Background(), req); err != nil {
			t.Error(err)
		}
	})
}

// Page tokens come from peers: whatever they hold, reading one does not fail otherwise than by saying no.
func FuzzParsePageToken(f *testing.F) {
	f.Add(pageToken{"epoch-1", 7, 300, "view"}.String())
	f.Add("AQEBAQ")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		token, err := parsePageToken(s)
		if err != nil {
			return
		}
		if again, err := parsePageToken(token.String()); err != nil || again != token || token.from < 0 {
			t.Errorf("%q is read as %+v, which is read as %+v, %v", s, token, again, err)
		}
	})
}
