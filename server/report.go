package server

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// Ingest takes reports. Both methods are called from the goroutine that reads the stream.
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
	modelgatewaypb.RegisterLoadMonitorServiceServer(g, s)
	alias := modelgatewaypb.LoadMonitorService_ServiceDesc
	alias.ServiceName = AliasServiceName
	alias.Metadata = aliasFile
	g.RegisterService(&alias, s)
}

// Report reads one engine's reports until the engine, the monitor or a newer stream ends it.
//
// A call that is blocked in RecvMsg cannot be told that somebody took over. So whoever ends the stream writes its status,
// which ends the RecvMsg that is under way; what is returned from here then reaches nobody.
func (s *reports) Report(stream grpc.ClientStreamingServer[modelgatewaypb.LoadReport, emptypb.Empty]) error {
	writer, err := statusWriterOf(stream.Context())
	if err != nil {
		return s.end(err)
	}
	st := load.NewStreamFunc(load.TransportPush, func(err error) {
		_ = writer.WriteStatus(status.Convert(streamStatus(err))) // fails when the connection has ended, and the stream with it
	})
	if err := s.open.add(st); err != nil {
		return s.end(err)
	}
	defer s.ingest.Release(st)
	defer s.open.remove(st)
	return s.end(st.Leave(s.read(st, stream)))
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

// read applies reports until the stream ends or one of them ends it, and returns why.
func (s *reports) read(st *load.Stream, stream grpc.ServerStream) error {
	timer := time.AfterFunc(s.firstReport, func() {
		st.End(fmt.Errorf("%w: want one within %v", errNoFirstReport, s.firstReport))
	})
	defer func() {
		if timer != nil {
			timer.Stop()
		}
	}()

	in := incoming{maxRanks: s.maxRanks}
	troubled := false
	for {
		if err := stream.RecvMsg(&in); err != nil {
			return s.recvEnd(err)
		}
		if err := st.Err(); err != nil {
			return err
		}
		err := s.take(st, &in)
		switch {
		case err == nil:
			troubled = false
			if timer != nil {
				timer.Stop()
				timer = nil
			}
		case endsStream(err):
			return err
		case !troubled:
			troubled = true
			label, _ := reasonOf(err)
			s.episodes.warn(label, "report refused, the state before it stays", "error", err)
		}
	}
}

// take applies one received message.
func (s *reports) take(st *load.Stream, in *incoming) error {
	defer in.release()
	if in.err != nil {
		return in.err
	}
	return s.ingest.Apply(st, &in.report)
}

// recvEnd says what an error of Recv means.
func (s *reports) recvEnd(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return errHalfClosed
	case status.Code(err) == codes.ResourceExhausted:
		return fmt.Errorf("%w: at most %d bytes", errTooLarge, s.maxMessage)
	case status.Code(err) == codes.Canceled, status.Code(err) == codes.Unavailable, status.Code(err) == codes.DeadlineExceeded:
		return errGone
	}
	return fmt.Errorf("read the stream: %w", err)
}

// metrics returns the figures of the report streams.
func (s *reports) metrics() []load.Metric {
	return []load.Metric{
		gauge("report_streams", "Report streams that are open.", func() float64 { return float64(s.open.count()) }),
		s.ended.metric("report_streams_ended_total", "Report streams that ended or were refused, by reason."),
	}
}
