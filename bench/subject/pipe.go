package subject

import (
	"context"
	"encoding/binary"
	"errors"
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

// pipe passes the bytes of reports on to every watcher, undecoded. It collects them as the product paces its versions: at
// once when quiet, and then at most one frame for each interval. How long a report lay there is told with it, so that the
// way alone can be measured.
type pipe struct {
	modelgatewaypb.UnimplementedLoadMonitorServiceServer
	loadmonitorpb.UnimplementedSnapshotServiceServer
	delays
	interval time.Duration
	pad      []byte

	messages, frames, bytes atomic.Uint64

	mu      sync.Mutex
	pending []byte // guarded by mu: entries of the next frame
	newest  *link  // guarded by mu
	wake    chan struct{}
}

// link is one frame, and the next one once there is one.
type link struct {
	frame mem.Buffer
	ready chan struct{} // closed when next is set
	next  *link
}

// A frame of a pipe is a head, the time in microseconds at which it was made, followed by entries: a head of the time of
// arrival and the length of the report, the report, and padding.
const (
	pipeHead  = 8
	entryHead = 8 + 4
)

func newPipe(c Config) *pipe {
	return &pipe{
		interval: time.Duration(c.IntervalMs) * time.Millisecond, pad: make([]byte, c.PadBytes),
		newest: &link{ready: make(chan struct{})}, wake: make(chan struct{}, 1),
	}
}

func (p *pipe) Report(stream grpc.ClientStreamingServer[modelgatewaypb.LoadReport, emptypb.Empty]) error {
	raw := drive.Raw{Keep: true}
	for {
		if err := stream.RecvMsg(&raw); err != nil {
			return err
		}
		p.messages.Add(1)
		now := time.Now().UnixMicro()
		p.mu.Lock()
		first := len(p.pending) == 0
		p.pending = binary.LittleEndian.AppendUint64(p.pending, uint64(now))
		p.pending = binary.LittleEndian.AppendUint32(p.pending, uint32(len(raw.Bytes)))
		p.pending = append(append(p.pending, raw.Bytes...), p.pad...)
		p.mu.Unlock()
		if first {
			select {
			case p.wake <- struct{}{}:
			default:
			}
		}
	}
}

// publish makes frames until ctx ends.
func (p *pipe) publish(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		l := &link{ready: make(chan struct{})}
		p.mu.Lock()
		frame := binary.LittleEndian.AppendUint64(make([]byte, 0, pipeHead+len(p.pending)), uint64(time.Now().UnixMicro()))
		last := p.newest
		l.frame = mem.SliceBuffer(append(frame, p.pending...))
		p.pending = p.pending[:0]
		p.newest = l
		p.mu.Unlock()
		last.next = l
		close(last.ready)
		select {
		case <-ctx.Done():
			return
		case <-time.After(p.interval):
		}
	}
}

func (p *pipe) Watch(_ *loadmonitorpb.WatchRequest, stream grpc.ServerStreamingServer[loadmonitorpb.WatchResponse]) error {
	p.mu.Lock()
	l := p.newest
	p.mu.Unlock()
	hello := mem.SliceBuffer(binary.LittleEndian.AppendUint64(nil, uint64(time.Now().UnixMicro())))
	if err := stream.SendMsg(&drive.Raw{Data: mem.BufferSlice{hello}}); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-l.ready:
		}
		l = l.next
		if err := stream.SendMsg(&drive.Raw{Data: mem.BufferSlice{l.frame}}); err != nil {
			return err
		}
		p.frames.Add(1)
		p.bytes.Add(uint64(l.frame.Len()))
	}
}

func (p *pipe) run(ctx context.Context, ready func(addr string)) error {
	g := grpc.NewServer(append(serverOptions(), grpc.ForceServerCodecV2(drive.RawCodec()))...)
	modelgatewaypb.RegisterLoadMonitorServiceServer(g, p)
	loadmonitorpb.RegisterSnapshotServiceServer(g, p)
	var publishing sync.WaitGroup
	publishing.Go(func() { p.publish(ctx) })
	err := serve(ctx, g, ready)
	publishing.Wait()
	return err
}

func (p *pipe) count(s *Stats) {
	s.Messages, s.Frames, s.Bytes = p.messages.Load(), p.frames.Load(), p.bytes.Load()
}

// PipeEntry is one report that came through a Pipe.
type PipeEntry struct {
	Report []byte
	Lay    time.Duration // between its arrival and the making of the frame
}

var errPipeFrame = errors.New("not a frame of a pipe")

// ReadPipe calls f for every report of a frame, whose entries were padded with padBytes.
func ReadPipe(frame []byte, padBytes int, f func(PipeEntry)) error {
	if len(frame) < pipeHead {
		return errPipeFrame
	}
	made := int64(binary.LittleEndian.Uint64(frame))
	for rest := frame[pipeHead:]; len(rest) > 0; {
		if len(rest) < entryHead {
			return errPipeFrame
		}
		came, size := int64(binary.LittleEndian.Uint64(rest)), int(binary.LittleEndian.Uint32(rest[8:]))
		if len(rest) < entryHead+size+padBytes {
			return errPipeFrame
		}
		f(PipeEntry{Report: rest[entryHead : entryHead+size], Lay: time.Duration(made-came) * time.Microsecond})
		rest = rest[entryHead+size+padBytes:]
	}
	return nil
}
