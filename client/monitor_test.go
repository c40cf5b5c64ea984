package client

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// monitor is a scripted SnapshotService: the first stream runs the first script, later ones the next, and the last script
// serves all that follow.
type monitor struct {
	loadmonitorpb.UnimplementedSnapshotServiceServer
	scripts []func(*session) error

	mu       sync.Mutex
	requests []*loadmonitorpb.WatchRequest
}

// session is one stream of a scripted monitor. Its clock stood at zero ten seconds before the test began, unless the
// script moves it.
type session struct {
	stream grpc.ServerStreamingServer[loadmonitorpb.WatchResponse]
	zero   time.Time
}

// monitorStart is ten seconds before any bubble begins.
var monitorStart = time.Date(1999, 12, 31, 23, 59, 50, 0, time.UTC)

func (m *monitor) Watch(req *loadmonitorpb.WatchRequest, stream grpc.ServerStreamingServer[loadmonitorpb.WatchResponse]) error {
	m.mu.Lock()
	n := len(m.requests)
	m.requests = append(m.requests, req)
	m.mu.Unlock()
	return m.scripts[min(n, len(m.scripts)-1)](&session{stream: stream, zero: monitorStart})
}

// request returns the n-th request, or nil.
func (m *monitor) request(n int) *loadmonitorpb.WatchRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n >= len(m.requests) {
		return nil
	}
	return m.requests[n]
}

func (m *monitor) tries() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.requests)
}

// us returns the monitor's clock.
func (s *session) us() uint64 { return uint64(time.Since(s.zero).Microseconds()) }

// send sends a frame with the time and a heartbeat of one second.
func (s *session) send(r *loadmonitorpb.WatchResponse) error {
	r.SetNowUs(s.us())
	r.SetHeartbeatMs(1000)
	return s.stream.Send(r)
}

// beat sends n heartbeats of a version, one after each second; fewer when the stream ends.
func (s *session) beat(n int, epoch string, version uint64) error {
	for range n {
		if err := s.sleep(time.Second); err != nil {
			return err
		}
		r := frame{Epoch: epoch, View: "v", BaseVersion: version, Version: version, Last: true}.Build()
		if err := s.send(r); err != nil {
			return err
		}
	}
	return nil
}

// sendThenBeat sends a frame of epoch e and beats until the client leaves.
func (s *session) sendThenBeat(r *loadmonitorpb.WatchResponse) error {
	if err := s.send(r); err != nil {
		return err
	}
	return s.beat(forever, "e", r.GetVersion())
}

func (s *session) sleep(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-s.stream.Context().Done():
		return s.stream.Context().Err()
	}
}

// hang says nothing until the client gives up.
func (s *session) hang() error {
	<-s.stream.Context().Done()
	return s.stream.Context().Err()
}

const forever = 1 << 30

var errGone = status.Error(codes.Unavailable, "shutting down")

// serve starts a monitor and a client of it inside a bubble and ends both with the test. The client runs when serve
// returns; nothing has happened yet.
func serve(t *testing.T, o Options, scripts ...func(*session) error) (*Client, *monitor) {
	t.Helper()
	m := &monitor{scripts: scripts}
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	loadmonitorpb.RegisterSnapshotServiceServer(server, m)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	o.DialOptions = append(o.DialOptions, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return l.DialContext(ctx)
	}))
	c, err := Dial("passthrough:///monitor", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, m
}

// bubble runs a test in fake time.
func bubble(name string, t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// wait returns the first view for which ok is true, and fails the test when that takes longer than d.
func wait(t *testing.T, c *Client, d time.Duration, ok func(*View) bool) *View {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	v, err := c.Wait(ctx, ok)
	if err != nil {
		now := c.View()
		t.Fatalf("waited %v for nothing; epoch %q, version %d, summary %+v, link %+v", d, now.Epoch, now.Version, now.Summary, now.Link)
	}
	return v
}

func atVersion(n uint64) func(*View) bool { return func(v *View) bool { return v.Version >= n } }

func freshness(v *View, handle uint32) load.Freshness {
	w, ok := v.ByHandle(handle)
	if !ok {
		return load.FreshnessUnspecified
	}
	return w.Freshness
}

// full is a full picture of epoch e; delta what changed since the version before.
func full(version uint64, ws ...*loadmonitorpb.Worker) *loadmonitorpb.WatchResponse {
	return fullOf("e", version, ws...)
}

func fullOf(epoch string, version uint64, ws ...*loadmonitorpb.Worker) *loadmonitorpb.WatchResponse {
	return frame{Epoch: epoch, View: "v", Version: version, Last: true, Changed: ws, Summary: summaryFor(ws...)}.Build()
}

func delta(base, version uint64, s scene, ws ...*loadmonitorpb.Worker) *loadmonitorpb.WatchResponse {
	return s.last(frame{Epoch: "e", View: "v", BaseVersion: base, Version: version, Changed: ws})
}
