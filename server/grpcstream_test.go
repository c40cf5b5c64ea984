package server

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// This fails when a new version of gRPC has no such stream any more.
func TestGRPCStream_IsThere(t *testing.T) {
	if err := checkGRPCStream(); err != nil {
		t.Fatal(err)
	}
}

// The reader of a stream waits when the stream is ended from outside: before the first report, after one, and
// in the middle of a message.
func TestGRPCStream_EndsABlockedReader(t *testing.T) {
	applied := make(chan *load.Stream, 1)
	r := start(t, Options{Ingest: newFakeIngest(func(st *load.Stream, _ *load.Report) error {
		applied <- st
		return nil
	})})
	p := newRawPeer(t, r.GRPCAddr().String())
	p.callWith(modelgatewaypb.LoadMonitorService_Report_FullMethodName, false, []byte{0, 0, 0, 1, 0, 'x'}) // one byte of 256
	await(t, "the stream is open", func() bool { return r.reports.open.count() == 1 })
	for _, st := range r.reports.open.all() {
		st.End(load.ErrWorkerRemoved)
	}
	next(t, r.ingest.ended, "release in the middle of a message")
	await(t, "the peer is told", func() bool { return p.told("5") == load.ErrWorkerRemoved.Error() })

	stream := report(t, r.dial())
	send(t, stream, sane("src", 1))
	st := next(t, applied, "report")
	st.End(fmt.Errorf("worker w1: %w", load.ErrStreamSuperseded))
	st.End(load.ErrWorkerRemoved)
	if got := endOf(t, stream); got.Code() != codes.Aborted || got.Message() != "worker w1: "+load.ErrStreamSuperseded.Error() {
		t.Errorf("the stream ended with %v", got)
	}
	next(t, r.ingest.ended, "release")
	if n := r.reports.ended.count("stream_superseded"); n != 1 {
		t.Errorf("counted %d", n)
	}
}

// Streams end from several sides at once: each is counted for the reason that the engine was told, and released once.
func TestGRPCStream_EndsFromAllSides(t *testing.T) {
	const each = 40
	begun := make(chan *load.Stream, 1)
	r := start(t, Options{Ingest: newFakeIngest(func(st *load.Stream, r *load.Report) error {
		switch r.Sequence {
		case 1:
			begun <- st
		case 2:
			return load.ErrIdentityChanged
		}
		return nil
	})})
	cc := r.dial()
	var told [17]atomic.Int64 // by code
	var running sync.WaitGroup
	for i := range 4 * each {
		stream := report(t, cc)
		source := fmt.Sprint("src", i)
		send(t, stream, sane(source, 1))
		st := next(t, begun, "report")
		for _, reason := range []error{load.ErrStreamSuperseded, load.ErrWorkerRemoved} {
			running.Go(func() { st.End(reason) })
		}
		running.Go(func() {
			switch i % 4 {
			case 0:
				_ = stream.CloseSend()
			case 1:
				_ = stream.Send(sane(source, 2)) // an error says that the end was faster
			case 2:
				for seq := range uint64(20) {
					if stream.Send(sane(source, seq+3)) == io.EOF {
						break
					}
				}
			}
		})
		running.Go(func() { told[endOf(t, stream).Code()].Add(1) })
	}
	running.Wait()
	for range 4 * each {
		next(t, r.ingest.ended, "release")
	}
	r.shutdown()
	assertNothingRuns(t)
	counted := map[codes.Code]int64{
		codes.Aborted:         r.reports.ended.count("stream_superseded"),
		codes.NotFound:        r.reports.ended.count("worker_removed"),
		codes.Unavailable:     r.reports.ended.count("half_closed"),
		codes.InvalidArgument: r.reports.ended.count("identity_changed"),
	}
	var sum int64
	for code, n := range counted {
		if got := told[code].Load(); got != n {
			t.Errorf("%d streams were told %v, %d were counted", got, code, n)
		}
		sum += n
	}
	if sum != 4*each {
		t.Errorf("%d streams were counted, want %d", sum, 4*each)
	}
	if n := r.reports.open.count(); n != 0 {
		t.Errorf("%d streams are open", n)
	}
}

// Shutdown comes while streams open and end: all are told or refused, and nothing is left.
func TestGRPCStream_ShutdownAmongNewStreams(t *testing.T) {
	r := start(t, Options{})
	cc := r.dial()
	var running sync.WaitGroup
	first := make(chan struct{}, 1)
	for range 8 {
		running.Go(func() {
			for {
				ctx, cancel := context.WithTimeout(t.Context(), hangGuard)
				stream, err := modelgatewaypb.NewLoadMonitorServiceClient(cc).Report(ctx)
				if err == nil {
					_ = stream.Send(sane("src", 1))
					select {
					case first <- struct{}{}:
					default:
					}
					err = stream.RecvMsg(nil)
				}
				cancel()
				if err != nil {
					return
				}
			}
		})
	}
	next(t, first, "stream")
	r.shutdown()
	running.Wait()
	assertNothingRuns(t)
	if n := r.reports.open.count(); n != 0 {
		t.Errorf("%d streams are open", n)
	}
}

// all returns the open streams.
func (o *openStreams) all() []*load.Stream {
	o.mu.Lock()
	defer o.mu.Unlock()
	var list []*load.Stream
	for st := range o.set {
		list = append(list, st)
	}
	return list
}
