package server

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// countingIngest says when the n-th report was applied.
type countingIngest struct {
	n, want int
	done    chan struct{}
}

func (c *countingIngest) Apply(*load.Stream, *load.Report) error {
	if c.n++; c.n == c.want {
		close(c.done)
	}
	return nil
}

func (c *countingIngest) Release(*load.Stream) {}

// bareReceiver only receives: the ceiling.
type bareReceiver struct {
	modelgatewaypb.UnimplementedLoadMonitorServiceServer
	*countingIngest
}

func (r bareReceiver) Report(stream grpc.ClientStreamingServer[modelgatewaypb.LoadReport, emptypb.Empty]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		_ = r.Apply(nil, nil)
	}
}

// BenchmarkReport sends reports of eight ranks over one TCP connection as fast as they are taken. "bare" is a handler
// that only receives, with the same options: what is above it is the price of this package. The sender's work is in
// both.
func BenchmarkReport(b *testing.B) {
	b.Run("product", func(b *testing.B) {
		ingest := &countingIngest{done: make(chan struct{})}
		s, err := New(Options{Ingest: ingest, Registry: &fakeRegistry{}, Snapshots: newFakeSnapshots(load.FleetReady),
			GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0"})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Listen(b.Context()); err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		pump(b, s.GRPCAddr().String(), ingest)
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	})
	b.Run("bare", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		ingest := &countingIngest{done: make(chan struct{})}
		g := grpc.NewServer(grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window), grpc.ReadBufferSize(readBuffer),
			grpc.WriteBufferSize(writeBuffer))
		modelgatewaypb.RegisterLoadMonitorServiceServer(g, bareReceiver{countingIngest: ingest})
		go func() { _ = g.Serve(l) }()
		pump(b, l.Addr().String(), ingest)
		g.Stop()
	})
}

// pump sends b.N reports, encoded beforehand, and waits for the last to be applied.
func pump(b *testing.B, addr string, ingest *countingIngest) {
	msg := eightRanks(b)
	ingest.want = b.N
	stream, err := dialAddr(b, addr).NewStream(b.Context(), &modelgatewaypb.LoadMonitorService_ServiceDesc.Streams[0],
		modelgatewaypb.LoadMonitorService_Report_FullMethodName, grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(msg)))
	b.ResetTimer()
	for range b.N {
		if err := stream.SendMsg(msg); err != nil {
			b.Fatal(err)
		}
	}
	<-ingest.done
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reports/s")
}

func eightRanks(tb testing.TB) []byte {
	m := sane("0b6b9e0e-7f4b-4b7e-9d5b-0a6f4ad1f7a2", 1)
	m.Ranks = nil
	for i := range int32(8) {
		r := rank(i)
		r.NumWaitingReqs, r.NumWaitingUncachedTokens, r.NumUsedTokens, r.MaxTotalNumTokens = 3, 12_000, 123_456, 1_000_000
		r.CacheHitRate, r.Utilization, r.PrefillThroughput = 0.3, 0.7, 9000
		m.Ranks = append(m.Ranks, r)
	}
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// BenchmarkDecode is the part between the bytes and the rules.
func BenchmarkDecode(b *testing.B) {
	msg := eightRanks(b)
	var r load.Report
	var last names
	b.ReportAllocs()
	for b.Loop() {
		if err := decodeReport(msg, &r, &last, 1024); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reports/s")
}
