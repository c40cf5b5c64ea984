package subject

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/loadmonitor/loadmonitor/bench/drive"
	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
)

// sender sends the same ready bytes to every watcher whenever a report arrives: what nobody who sends over gRPC can do
// without.
type sender struct {
	modelgatewaypb.UnimplementedLoadMonitorServiceServer
	loadmonitorpb.UnimplementedSnapshotServiceServer
	delays

	first, frame mem.Buffer // immutable
	spread       time.Duration

	messages, frames atomic.Uint64
	watchers         atomic.Uint64

	mu   sync.Mutex
	next chan struct{} // guarded by mu: closed with the next report
}

func newSender(c Config) *sender {
	return &sender{
		first: mem.SliceBuffer(make([]byte, c.FirstBytes)), frame: mem.SliceBuffer(make([]byte, c.FrameBytes)),
		spread: time.Duration(c.SpreadMs) * time.Millisecond, next: make(chan struct{}),
	}
}

func (s *sender) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

func (s *sender) Report(stream grpc.ClientStreamingServer[modelgatewaypb.LoadReport, emptypb.Empty]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		s.messages.Add(1)
		s.mu.Lock()
		close(s.next)
		s.next = make(chan struct{})
		s.mu.Unlock()
	}
}

func (s *sender) Watch(_ *loadmonitorpb.WatchRequest, stream grpc.ServerStreamingServer[loadmonitorpb.WatchResponse]) error {
	next := s.wait()
	if err := stream.SendMsg(&drive.Raw{Data: mem.BufferSlice{s.first}}); err != nil {
		return err
	}
	s.frames.Add(1)
	// Slots a millisecond apart, as the product has them.
	slot := time.Duration(0)
	if ms := uint64(s.spread / time.Millisecond); ms > 0 {
		slot = time.Duration(s.watchers.Add(1)%ms) * time.Millisecond
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-next:
		}
		next = s.wait()
		if slot > 0 {
			timer.Reset(slot)
			<-timer.C
		}
		if err := stream.SendMsg(&drive.Raw{Data: mem.BufferSlice{s.frame}}); err != nil {
			return err
		}
		s.frames.Add(1)
	}
}

func (s *sender) run(ctx context.Context, ready func(addr string)) error {
	g := grpc.NewServer(append(serverOptions(), grpc.ForceServerCodecV2(drive.RawCodec()))...)
	modelgatewaypb.RegisterLoadMonitorServiceServer(g, s)
	loadmonitorpb.RegisterSnapshotServiceServer(g, s)
	return serve(ctx, g, ready)
}

func (s *sender) count(st *Stats) {
	st.Messages, st.Frames = s.messages.Load(), s.frames.Load()
	st.Bytes = st.Frames * uint64(s.frame.Len())
}
