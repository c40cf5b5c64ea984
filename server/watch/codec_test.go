package watch

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

func TestCodec_PassesFramesThroughAndMarshalsTheRest(t *testing.T) {
	t.Parallel()
	c := Codec()
	if c.Name() != "proto" {
		t.Errorf("name %q, want that of the stock codec", c.Name())
	}
	b, err := proto.Marshal(loadmonitorpb.WatchResponse_builder{Epoch: "e", Version: 3, Last: true}.Build())
	if err != nil {
		t.Fatal(err)
	}
	sh := share([][]byte{b})[0]
	for _, now := range []int64{0, 1, 1 << 40, 1<<63 - 1} {
		f := newFrame(sh, load.Instant(now), nil)
		wire, err := c.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		if f.size() != wire.Len() || f.nowN > nowSize {
			t.Errorf("size %d, want %d", f.size(), wire.Len())
		}
		want := loadmonitorpb.WatchResponse_builder{Epoch: "e", Version: 3, Last: true, NowUs: uint64(now)}.Build()
		got := &loadmonitorpb.WatchResponse{}
		if err := c.Unmarshal(wire, got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("now %d (-want +got):\n%s", now, diff)
		}
	}
	if _, err := c.Marshal("not a message"); err == nil {
		t.Error("the stock codec's refusal is lost")
	}
	wire, err := c.Marshal(loadmonitorpb.Resume_builder{Epoch: "e"}.Build())
	if err != nil {
		t.Fatal(err)
	}
	got := &loadmonitorpb.Resume{}
	if err := c.Unmarshal(wire, got); err != nil || got.GetEpoch() != "e" {
		t.Errorf("%v, %v", got, err)
	}
}

// A large frame leaves in pieces, so that a slow watcher is seen to take them; the bytes are the same and stay shared.
func TestFrame_TellsOfEachPieceThatLeaves(t *testing.T) {
	t.Parallel()
	large := bytes.Repeat([]byte("0123456789abcdef"), 3*pieceBytes/16)
	large = append(large, "rest"...)
	sh := share([][]byte{large})[0]
	if len(sh.pieces) != 4 {
		t.Fatalf("%d pieces", len(sh.pieces))
	}
	var now time.Duration
	taken := &progress{clock: func() time.Duration { return now }}
	buffers := newFrame(sh, 0, taken).buffers()
	if !bytes.Equal(buffers.Materialize(), large) {
		t.Fatal("pieces are not the frame")
	}
	buffers.Ref() // grpc holds on to what it has not sent
	buffers.Free()
	for i, b := range buffers[1:4] {
		now = time.Duration(i + 1)
		if got := taken.at.Load(); got != int64(i) {
			t.Errorf("%d pieces left, the last at %d", i, got)
		}
		b.Free()
	}
	if got := taken.at.Load(); got != 3 {
		t.Errorf("the last piece left at %d", got)
	}
	if !bytes.Equal(newFrame(sh, 0, taken).buffers().Materialize(), large) {
		t.Error("the shared bytes changed")
	}
}
