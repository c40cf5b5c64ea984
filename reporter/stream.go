package reporter

import (
	"context"
	"io"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/emptypb"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
)

const (
	connectTimeout   = 3 * time.Second
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	window           = 1 << 20
)

// stream runs one connection with one stream on it: it dials, reports at once and then at the registration's pace, and
// returns why the stream ended (nil: the monitor said OK). Everything it started has ended when it returns.
//
// Each try has a connection of its own: grpc's channel would answer from its own backoff instead of dialling.
func (t *target) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+t.addr.String(), t.r.dialOptions()...)
	if err != nil {
		return err
	}
	defer conn.Close()
	// By itself grpc keeps what was sent, up to 256 KiB, for a retry until the monitor says something, which it never does.
	stream, err := modelgatewaypb.NewLoadMonitorServiceClient(conn).Report(ctx, grpc.MaxRetryRPCBufferSize(0))
	if err != nil {
		return err
	}
	// Only a pending receive notices that the monitor ended the stream, and why.
	var reason error
	over := make(chan struct{})
	go func() {
		defer close(over)
		reason = stream.RecvMsg(new(emptypb.Empty))
	}()
	err = t.report(ctx, stream, over)
	cancel()
	<-over
	if err != nil {
		return err
	}
	return reason
}

func (r *Reporter) dialOptions() []grpc.DialOption {
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// The monitor named an address that this engine can dial; a proxy of the environment is for something else.
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		// Static windows switch off the bandwidth estimator, which would ping for every message.
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(window),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: grpcbackoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
	}
	return append(opts, r.opts.DialOptions...)
}

// sender is the part of a report stream that report needs.
type sender interface {
	Send(*modelgatewaypb.LoadReport) error
}

// report sends the first report at once and one each interval after it. It returns nil when the monitor ended the stream,
// that is when over is closed, and otherwise what ended it on this side.
func (t *target) report(ctx context.Context, stream sender, over <-chan struct{}) error {
	// What was renewed while dialling is answered by the first report.
	select {
	case <-t.renewed:
	default:
	}
	begun := time.Now()
	reg := t.registration()
	due := begun
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			return nil
		case <-t.renewed:
			reg = t.registration()
			due = reg.anchor.Add(reg.interval)
		case <-timer.C:
			report := t.r.newReport(t.worker)
			if t.r.opts.Sending != nil {
				t.r.opts.Sending(report.GetSequenceId())
			}
			if err := stream.Send(report); err == io.EOF {
				// The stream is over; the receive knows why.
				<-over
				return nil
			} else if err != nil {
				return err
			}
			now := time.Now()
			var missed uint64
			due, missed = nextDue(due, now, reg.interval)
			t.sentOne(missed)
			if now.Sub(begun) >= steady {
				t.logSteady()
			}
		}
		timer.Reset(time.Until(due))
	}
}

// nextDue returns when the report after the one due at due is to be sent: the first whole number of intervals later that
// is not past, and how many periods were missed on the way.
func nextDue(due, now time.Time, interval time.Duration) (next time.Time, missed uint64) {
	next = due.Add(interval)
	if late := now.Sub(next); late > 0 {
		n := (late + interval - 1) / interval
		next = next.Add(n * interval)
		missed = uint64(n)
	}
	return next, missed
}
