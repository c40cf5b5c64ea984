package server

import (
	"context"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

// watchOn opens a watch and waits for its first frame.
func watchOn(ctx context.Context, cc grpc.ClientConnInterface) error {
	w, err := loadmonitorpb.NewSnapshotServiceClient(cc).Watch(ctx, &loadmonitorpb.WatchRequest{})
	if err != nil {
		return err
	}
	_, err = w.Recv()
	return err
}

// Case H3: one connection carries 300 report streams and 300 watches; other connections and HTTP notice nothing.
func TestStreams_ManyOnOneConnection(t *testing.T) {
	const each = 300
	r := start(t, Options{Snapshot: newFakeWatch()})
	ctx, cancel := context.WithTimeout(t.Context(), hangGuard)
	defer cancel()
	cc := r.dial()
	var reports []reportStream
	for i := range each {
		s := report(t, cc)
		send(t, s, sane("src", 1))
		reports = append(reports, s)
		if err := watchOn(ctx, cc); err != nil {
			t.Fatalf("watch %d: %v", i+1, err)
		}
	}
	for range each {
		next(t, r.ingest.applied, "report")
	}
	if resp, body := r.do(http.MethodGet, "/healthz", nil); resp.StatusCode != http.StatusOK {
		t.Errorf("%s %q", resp.Status, body)
	}
	other := r.dial()
	send(t, report(t, other), sane("other", 1))
	if got := next(t, r.ingest.applied, "report over a second connection"); got.SourceInstance != "other" {
		t.Errorf("applied %+v", got)
	}
	if err := watchOn(ctx, other); err != nil {
		t.Errorf("watch over a second connection: %v", err)
	}
	for _, s := range reports { // every stream still takes reports
		send(t, s, sane("src", 2))
	}
	for range each {
		if got := next(t, r.ingest.applied, "second report"); got.Sequence != 2 {
			t.Fatalf("applied %+v", got)
		}
	}
	if n := r.reports.open.count(); n != each+1 {
		t.Errorf("%d report streams are open, want %d", n, each+1)
	}
}

// Case H3: beyond the limit a call waits at the client until another one ends, and only on that connection.
func TestStreams_BeyondTheLimitWaitAtTheClient(t *testing.T) {
	const limit = 3
	r := start(t, Options{Snapshot: newFakeWatch(), MaxStreamsPerConnection: limit})
	ctx, cancel := context.WithTimeout(t.Context(), hangGuard)
	defer cancel()
	cc := r.dial()
	first, end := context.WithCancel(ctx)
	defer end()
	if err := watchOn(first, cc); err != nil {
		t.Fatal(err)
	}
	for range limit - 1 {
		if err := watchOn(ctx, cc); err != nil {
			t.Fatal(err)
		}
	}
	short, cancelShort := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancelShort()
	if err := watchOn(short, cc); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("one watch too many: %v, want that it waits until its deadline", err)
	}
	if err := watchOn(ctx, r.dial()); err != nil {
		t.Errorf("another connection: %v", err)
	}
	end()
	if err := watchOn(ctx, cc); err != nil {
		t.Errorf("after a watch has ended: %v", err)
	}
}
