package integration

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"

	"github.com/loadmonitor/loadmonitor/aggregator"
	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/server/watch"
)

// monitor is one life of a load monitor: the aggregator and the snapshot service behind a gRPC server.
type monitor struct {
	*aggregator.Aggregator
	options monitorOptions
	zero    time.Time // where the epoch's clock stands at 0
	archive *archive
	server  *grpc.Server
	stop    func()
}

type monitorOptions struct {
	heartbeat     time.Duration
	window        time.Duration
	maxFrameBytes int
	sends         *gates // each frame passes the gate of its receiver
}

// startMonitor starts one on a network. It must be called inside a bubble; stop ends it.
func startMonitor(n *network, o monitorOptions) (*monitor, error) {
	a, err := aggregator.New(aggregator.Options{Window: o.window, Heartbeat: o.heartbeat})
	if err != nil {
		return nil, err
	}
	m := &monitor{Aggregator: a, options: o, zero: time.Now().Add(-micros(a.Now()))}
	if m.archive, err = newArchive(a); err != nil {
		return nil, err
	}
	service, err := watch.New(watch.Options{Source: m.archive, Heartbeat: o.heartbeat, MaxFrameBytes: o.maxFrameBytes})
	if err != nil {
		return nil, err
	}
	m.server = grpc.NewServer(
		grpc.ForceServerCodecV2(watch.Codec()),
		grpc.StaticStreamWindowSize(64<<10), grpc.StaticConnWindowSize(64<<10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return handler(srv, &gated{ss, o.sends})
		}),
	)
	loadmonitorpb.RegisterSnapshotServiceServer(m.server, service)

	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = a.Run(ctx) })
	running.Go(func() { _ = m.server.Serve(n.listen()) })
	m.stop = func() {
		service.Shutdown()
		m.server.Stop()
		cancel()
		running.Wait()
	}
	return m, nil
}

func micros(i load.Instant) time.Duration { return time.Duration(i) * time.Microsecond }

// gates hold back frames by the name of their receiver, before gRPC gets them: the slowest possible watcher, for which
// nothing is buffered anywhere.
type gates struct {
	mu   sync.Mutex
	shut map[string]chan struct{} // closed when the gate opens
}

func newGates() *gates { return &gates{shut: make(map[string]chan struct{})} }

func (g *gates) close(who string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut[who] == nil {
		g.shut[who] = make(chan struct{})
	}
}

func (g *gates) open(who string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.shut[who]; c != nil {
		close(c)
		delete(g.shut, who)
	}
}

func (g *gates) pass(ctx context.Context, who string) {
	g.mu.Lock()
	c := g.shut[who]
	g.mu.Unlock()
	if c == nil {
		return
	}
	select {
	case <-c:
	case <-ctx.Done():
	}
}

type gated struct {
	grpc.ServerStream
	gates *gates
}

func (s *gated) SendMsg(m any) error {
	if p, ok := peer.FromContext(s.Context()); ok {
		s.gates.pass(s.Context(), p.Addr.String())
	}
	return s.ServerStream.SendMsg(m)
}

// getSnapshot reads the newest snapshot over gRPC, all pages of it.
func getSnapshot(ctx context.Context, c loadmonitorpb.SnapshotServiceClient, f *loadmonitorpb.Filter) (*loadmonitorpb.GetSnapshotResponse, error) {
	req := &loadmonitorpb.GetSnapshotRequest{}
	req.SetFilter(f)
	whole, err := c.GetSnapshot(ctx, req)
	if err != nil {
		return nil, err
	}
	workers := whole.GetWorkers()
	for token := whole.GetNextPageToken(); token != ""; {
		req.SetPageToken(token)
		page, err := c.GetSnapshot(ctx, req)
		if err != nil {
			return nil, err
		}
		if page.GetEpoch() != whole.GetEpoch() || page.GetVersion() != whole.GetVersion() {
			return nil, fmt.Errorf("pages of %s %d and %s %d", whole.GetEpoch(), whole.GetVersion(), page.GetEpoch(), page.GetVersion())
		}
		workers = append(workers, page.GetWorkers()...)
		token = page.GetNextPageToken()
	}
	whole.SetWorkers(workers)
	whole.SetNextPageToken("")
	return whole, nil
}

func dial(n *network, who string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///monitor", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(n.dialer(who)))
}
