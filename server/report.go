package server

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// Ingest takes reports. For one stream, its methods are called one after the other.
type Ingest interface {
	// Apply takes one report or refuses it with an error that wraps a load sentinel. Which refusals end the stream stands
	// in errors.go. It keeps nothing of r.Ranks.
	Apply(st *load.Stream, r *load.Report) error
	// Release says that the stream has ended; it is called once, after the last Apply.
	Release(st *load.Stream)
}

// AliasServiceName is the second name under which engines in the field find the report service.
const AliasServiceName = "router.loadmonitor.v1.LoadMonitorService"

// reports is the service behind both names of LoadMonitorService.
type reports struct {
	modelgatewaypb.UnimplementedLoadMonitorServiceServer

	// immutable after New
	ingest      Ingest
	log         *slog.Logger
	episodes    *episodes
	maxRanks    int
	maxMessage  int
	firstReport time.Duration
	ended       *tally // streams by reason

	open *openStreams // closed by shutdown
}

// register serves the report service under both names.
func (s *reports) register(g *grpc.Server) {
	desc := modelgatewaypb.LoadMonitorService_ServiceDesc
	desc.Streams = slices.Clone(desc.Streams)
	desc.Streams[0].Handler = handle // has fewer frames than the generated one
	g.RegisterService(&desc, s)
	desc.ServiceName, desc.Metadata = AliasServiceName, aliasFile
	g.RegisterService(&desc, s)
}

// handle reads one engine's reports until the engine, the monitor or a newer stream ends it.
//
// Thousands of streams hold what is on the stack here while they wait, and the largest that it has ever been: see
// grpcStream. So few frames stand between gRPC and the report, and what binds a stream to its worker, which takes more of
// them, has a stack of its own.
func handle(srv any, stream grpc.ServerStream) error {
	s := srv.(*reports)
	in, err := s.begin(stream)
	if err != nil {
		return s.end(err)
	}
	for {
		message, err := in.next()
		if err != nil {
			return s.finish(in, err)
		}
		if in.untilFirst == nil {
			err = s.take(in, message)
		} else {
			err = s.takeApart(in, message)
		}
		if err != nil {
			return s.finish(in, err)
		}
	}
}

// begin opens a stream.
//
// A call that waits for its next message cannot be told that somebody took over. So whoever ends the stream writes its
// status, which ends the wait; what the handler returns then reaches nobody.
func (s *reports) begin(stream grpc.ServerStream) (*incoming, error) {
	in := &incoming{maxMessage: s.maxMessage, maxRanks: s.maxRanks}
	var err error
	if in.call, err = grpcStreamOf(stream.Context()); err != nil {
		return nil, err
	}
	in.stream = load.NewStreamFunc(load.TransportPush, func(err error) {
		_ = in.call.WriteStatus(status.Convert(streamStatus(err))) // fails when the connection has ended, and the stream with it
	})
	if err := s.open.add(in.stream); err != nil {
		return nil, err // nobody knows the stream yet
	}
	in.untilFirst = time.AfterFunc(s.firstReport, func() {
		in.stream.End(fmt.Errorf("%w: want one within %v", errNoFirstReport, s.firstReport))
	})
	return in, nil
}

// finish leaves a stream for err and returns its status.
func (s *reports) finish(in *incoming, err error) error {
	if in.untilFirst != nil {
		in.untilFirst.Stop()
	}
	err = in.stream.Leave(err)
	s.open.remove(in.stream)
	s.ingest.Release(in.stream)
	return s.end(err)
}

// end counts and logs why a stream ends, and returns its status.
func (s *reports) end(err error) error {
	label, _ := reasonOf(err)
	s.ended.add(label)
	switch codeOf(err) {
	case codes.Canceled, codes.Unavailable:
		s.log.Debug("report stream ended", "error", err)
	default:
		s.episodes.warn(label, "report stream ended", "error", err)
	}
	return streamStatus(err)
}

// take applies a message, and returns why it ends the stream, if it does.
func (s *reports) take(in *incoming, message mem.BufferSlice) error {
	r := scratches.Get().(*load.Report)
	err := in.decode(message, r)
	if err == nil {
		err = s.ingest.Apply(in.stream, r)
	}
	scratches.Put(r)
	if err != nil {
		return s.refused(in, err)
	}
	in.troubled = false
	if in.untilFirst != nil {
		in.untilFirst.Stop()
		in.untilFirst = nil
	}
	return nil
}

// takeApart is take on another stack.
func (s *reports) takeApart(in *incoming, message mem.BufferSlice) error {
	taken := make(chan error)
	go func() { taken <- s.take(in, message) }()
	return <-taken
}

// refused returns err when it ends the stream, and otherwise logs it, once for each episode.
func (s *reports) refused(in *incoming, err error) error {
	if endsStream(err) {
		return err
	}
	if !in.troubled {
		in.troubled = true
		label, _ := reasonOf(err)
		s.episodes.warn(label, "report refused, the state before it stays", "error", err)
	}
	return nil
}

// metrics returns the figures of the report streams.
func (s *reports) metrics() []load.Metric {
	return []load.Metric{
		gauge("report_streams", "Report streams that are open.", func() float64 { return float64(s.open.count()) }),
		s.ended.metric("report_streams_ended_total", "Report streams that ended or were refused, by reason."),
	}
}
