package subject

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
)

// receiver decodes reports and drops them: what nobody who takes them over gRPC can do without.
type receiver struct {
	modelgatewaypb.UnimplementedLoadMonitorServiceServer
	delays
	messages atomic.Uint64
}

func newReceiver() *receiver { return &receiver{} }

func (r *receiver) Report(stream grpc.ClientStreamingServer[modelgatewaypb.LoadReport, emptypb.Empty]) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		r.messages.Add(1)
		r.note(m.GetSequenceId())
	}
}

func (r *receiver) run(ctx context.Context, ready func(addr string)) error {
	g := grpc.NewServer(serverOptions()...)
	modelgatewaypb.RegisterLoadMonitorServiceServer(g, r)
	return serve(ctx, g, ready)
}

func (r *receiver) count(s *Stats) {
	r.delays.count(s)
	s.Messages = r.messages.Load()
}
