package drive

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/emptypb"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
)

// Options of a Fleet.
type Options struct {
	Target      string   // host:port of the monitor's gRPC listener
	Workers     []string // the address of each, as it is registered
	Ranks       int      // of each worker
	Connections int      // that the workers share; at most one for each worker
	// Rate is how many reports each worker sends a second. 0: as many as are taken.
	Rate float64
}

// Fleet is a number of engines that report to one monitor.
type Fleet struct {
	// immutable after New
	opts    Options
	start   time.Time // sequence 0
	source  string    // begins every source instance
	conns   []*grpc.ClientConn
	workers []*worker
	cancel  context.CancelFunc // of all streams
	readers sync.WaitGroup

	closing atomic.Bool
	skipped atomic.Uint64

	mu    sync.Mutex
	ended []error // guarded by mu: why streams ended that nobody asked to end
	late  Delays  // guarded by mu: how long after its time a report was sent
}

// worker is one engine. Its fields are used by the lane that sends for it.
type worker struct {
	message *message
	stream  grpc.ClientStream
	over    chan struct{} // closed when the stream has ended
	last    uint64        // sequence of the newest report
	sent    atomic.Uint64
}

// Dial opens the fleet's connections and a stream for each worker. Nothing is sent before Send.
func Dial(ctx context.Context, o Options) (*Fleet, error) {
	if len(o.Workers) == 0 || o.Ranks < 1 || o.Connections < 1 || o.Rate < 0 {
		return nil, fmt.Errorf("a fleet of %d workers with %d ranks on %d connections at %v reports/s: want at least one of each, and no negative rate",
			len(o.Workers), o.Ranks, o.Connections, o.Rate)
	}
	streams, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &Fleet{opts: o, start: time.Now(), source: "bench-" + rand.Text()[:12] + "-", cancel: cancel}
	for range min(o.Connections, len(o.Workers)) {
		conn, err := grpc.NewClient("passthrough:///"+o.Target, dialOptions()...)
		if err != nil {
			f.Close()
			return nil, err
		}
		f.conns = append(f.conns, conn)
	}
	f.workers = make([]*worker, len(o.Workers))
	nowMs := f.start.UnixMilli()
	for i, addr := range o.Workers {
		m, err := newMessage(f.Source(i), addr, o.Ranks, nowMs)
		if err != nil {
			f.Close()
			return nil, err
		}
		f.workers[i] = &worker{message: m, over: make(chan struct{})}
	}
	if err := f.open(ctx, streams); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func dialOptions() []grpc.DialOption {
	const window = 1 << 20
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(window),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	}
}

// open opens every stream, those of one connection one after the other.
func (f *Fleet) open(ctx, streams context.Context) error {
	errs := make([]error, len(f.conns))
	var wg sync.WaitGroup
	for c, conn := range f.conns {
		wg.Go(func() {
			for i := c; i < len(f.workers) && ctx.Err() == nil; i += len(f.conns) {
				// By itself gRPC keeps what a stream has sent, up to 256 KiB, until the other end says something, for a retry.
				s, err := conn.NewStream(streams, &modelgatewaypb.LoadMonitorService_ServiceDesc.Streams[0],
					modelgatewaypb.LoadMonitorService_Report_FullMethodName, grpc.ForceCodecV2(RawCodec()), grpc.WaitForReady(true),
					grpc.MaxRetryRPCBufferSize(0))
				if err != nil {
					errs[c] = fmt.Errorf("open the report stream of %s: %w", f.opts.Workers[i], err)
					return
				}
				f.workers[i].stream = s
				f.readers.Go(func() { f.await(i) })
			}
		})
	}
	wg.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// await notes the end of a stream, which only a pending receive notices.
func (f *Fleet) await(i int) {
	w := f.workers[i]
	err := w.stream.RecvMsg(new(emptypb.Empty))
	if f.closing.Load() {
		return
	}
	f.mu.Lock()
	f.ended = append(f.ended, fmt.Errorf("the report stream of %s ended: %w", f.opts.Workers[i], err))
	f.mu.Unlock()
	close(w.over)
}

// Start returns when sequence 0 was.
func (f *Fleet) Start() time.Time { return f.start }

// Sent returns how many reports were handed to gRPC.
func (f *Fleet) Sent() uint64 {
	var n uint64
	for _, w := range f.workers {
		n += w.sent.Load()
	}
	return n
}

// Skipped returns how many reports were left out because their time had passed by a whole interval.
func (f *Fleet) Skipped() uint64 { return f.skipped.Load() }

// Source returns the source instance of worker i.
func (f *Fleet) Source(i int) string { return fmt.Sprintf("%s%05d", f.source, i) }

// Last returns the sequence of worker i's newest report. It must not be called while Send runs.
func (f *Fleet) Last(i int) uint64 { return f.workers[i].last }

// Ended returns why streams ended that nobody asked to end.
func (f *Fleet) Ended() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]error(nil), f.ended...)
}

// Late returns how long after their time reports were sent so far, with which this process shows that it cannot keep up.
func (f *Fleet) Late() *Delays {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.late
	return &d
}

// Close ends every stream and connection, and waits until all is gone.
func (f *Fleet) Close() {
	f.closing.Store(true)
	f.cancel()
	for _, c := range f.conns {
		_ = c.Close()
	}
	f.readers.Wait()
}

// send sends the next report of a worker; false: its stream is over.
func (f *Fleet) send(w *worker) bool {
	now := time.Now()
	sequence := max(w.last+1, uint64(now.Sub(f.start).Microseconds()))
	n := w.sent.Load() + 1
	raw := Raw{Data: mem.BufferSlice{w.message.encode(sequence, now.UnixMilli(), int(n))}}
	if w.stream.SendMsg(&raw) != nil {
		return false // the receive knows why
	}
	w.last = sequence
	w.sent.Store(n)
	return true
}
