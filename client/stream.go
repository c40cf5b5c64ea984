package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/protobuf/proto"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

const (
	// connectTimeout bounds one try to connect, which can otherwise take as long as the peer's kernel likes.
	connectTimeout = 5 * time.Second
	// firstUpdateTimeout is how long a stream may take for each frame of its first update. It is longer than the usual
	// link timeout: dropping a large picture on a slow link would only make it start again.
	firstUpdateTimeout = 10 * time.Second
)

// stream is one open Watch.
type stream struct {
	// immutable after open
	asked  time.Time // just before the request was sent
	cancel context.CancelCauseFunc

	// used only by Run's own goroutine
	frames    frames
	epoch     string    // of the newest frame
	clock     *clock    // of that epoch
	delivered time.Time // when the first update was complete; zero: not yet

	// guarded by Client.mu
	silentAt time.Time // no frame until then: the stream is dead
}

// runOnce opens one stream and reads it to its end. Each try has a connection of its own, so a name is looked up again,
// and a half-open connection is left behind. healthy says that the stream delivered for a while.
func (c *Client) runOnce(ctx context.Context) (healthy bool, err error) {
	c.count.tries.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	s := &stream{cancel: cancel}
	defer func() {
		cancel(nil)
		c.close(err)
		healthy = !s.delivered.IsZero() && time.Since(s.delivered) >= healthyAfter
	}()

	conn, err := grpc.NewClient(c.target, c.dialOptions...)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	if err := connect(ctx, conn); err != nil {
		return false, err
	}
	watch, err := loadmonitorpb.NewSnapshotServiceClient(conn).Watch(ctx, c.open(s))
	if err != nil {
		return false, because(ctx, err)
	}
	for {
		r, err := watch.Recv()
		if err != nil {
			return false, because(ctx, err)
		}
		if err := c.receive(s, r, time.Now()); err != nil {
			c.count.violations.Add(1)
			c.distrust = true
			return false, err
		}
	}
}

// because returns why ctx was cancelled, if it was, and err otherwise.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// connect waits until conn is connected, or has failed: then the call says why better than the state does.
func connect(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("no connection within %v", connectTimeout))
	defer cancel()
	conn.Connect()
	for left := false; ; {
		s := conn.GetState()
		switch {
		case s == connectivity.Connecting:
			left = true
		case s != connectivity.Idle || left: // idle again: it was connected for a moment
			return nil
		}
		if !conn.WaitForStateChange(ctx, s) {
			return context.Cause(ctx)
		}
	}
}

// open makes s the stream whose silence counts, and returns its request.
func (c *Client) open(s *stream) *loadmonitorpb.WatchRequest {
	s.asked = time.Now()
	req := proto.CloneOf(c.request)
	if p := c.held; p != nil {
		s.frames.held = p
		s.epoch, s.clock = p.epoch, c.clock
		if s.frames.resumed = !c.distrust; s.frames.resumed {
			req.SetResume(loadmonitorpb.Resume_builder{Epoch: p.epoch, Version: p.version, View: p.view}.Build())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream = s
	s.silentAt = s.asked.Add(max(firstUpdateTimeout, c.timeoutLocked()))
	c.recheck()
	return req
}

// close forgets the stream and notes why it ended. The end of Run is no trouble: finish says that.
func (c *Client) close(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream = nil
	if errors.Is(err, context.Canceled) {
		return
	}
	c.link.Trouble = fmt.Errorf("monitor %s: %w", c.target, err)
	c.publishLocked(c.explainLocked())
}
