package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/loadmonitor/loadmonitor/aggregator"
	"github.com/loadmonitor/loadmonitor/client"
	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/server"
	"github.com/loadmonitor/loadmonitor/server/watch"
)

// whole is a load monitor from its gRPC port inwards, inside a bubble: engines stream reports to it, routers watch it.
// Only who is registered comes from the test.
type whole struct {
	*aggregator.Aggregator
	t       *testing.T
	network *network
	reader  loadmonitorpb.SnapshotServiceClient
	dialled atomic.Int64
}

// SetWorkers registers workers.
func (m *whole) SetWorkers(workers []load.Worker) { m.Aggregator.SetWorkers(pointers(workers)) }

// pointers returns copies of the workers.
func pointers(workers []load.Worker) []*load.Worker {
	all := make([]*load.Worker, len(workers))
	for i := range workers {
		all[i] = new(workers[i])
	}
	return all
}

// inBubble runs f beside a load monitor that knows the workers.
func inBubble(t *testing.T, workers []load.Worker, f func(t *testing.T, m *whole)) {
	synctest.Test(t, func(t *testing.T) {
		m := &whole{t: t, network: newNetwork()}
		var err error
		if m.Aggregator, err = aggregator.New(aggregator.Options{}); err != nil {
			t.Fatal(err)
		}
		watching, err := watch.New(watch.Options{Source: m.Aggregator})
		if err != nil {
			t.Fatal(err)
		}
		web := newNetwork() // nobody speaks HTTP here
		s, err := server.New(server.Options{
			Ingest: m.Aggregator, Registry: nobody{}, Snapshots: m.Aggregator, Snapshot: watching, Codec: watch.Codec(),
			GRPCListener: m.network.listen(), HTTPListener: web.listen(),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { _ = m.Aggregator.Run(ctx) })
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Errorf("server: %v", err)
			}
		})
		t.Cleanup(func() {
			cancel()
			running.Wait()
		})
		m.reader = loadmonitorpb.NewSnapshotServiceClient(m.dial("reader"))
		if workers != nil {
			m.SetWorkers(workers)
		}
		f(t, m)
	})
}

// nobody is a registry of which no test here asks anything.
type nobody struct{}

func (nobody) Registrations() []load.Registration { return nil }
func (nobody) Register(load.Worker) (load.Worker, error) {
	return load.Worker{}, errors.New("nobody can register here")
}
func (nobody) Deregister(string) error { return errors.New("nobody is registered here") }

func (m *whole) dial(who string) *grpc.ClientConn {
	m.t.Helper()
	c, err := dial(m.network, who)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = c.Close() })
	return c
}

// pusher is a connection of an engine with one report stream on it.
type pusher struct {
	t      *testing.T
	stream grpc.ClientStreamingClient[modelgatewaypb.LoadReport, emptypb.Empty]
	cancel func()
}

// engine opens a connection and a report stream.
func (m *whole) engine() *pusher {
	m.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	m.t.Cleanup(cancel)
	stream, err := modelgatewaypb.NewLoadMonitorServiceClient(m.dial(fmt.Sprintf("engine%d", m.dialled.Add(1)))).Report(ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	return &pusher{m.t, stream, cancel}
}

// push sends a report and lets the monitor take it. It reports whether the stream still takes reports.
func (p *pusher) push(r *modelgatewaypb.LoadReport) bool {
	err := p.stream.Send(r)
	synctest.Wait()
	return err == nil && p.stream.Context().Err() == nil
}

// close ends the stream as an engine does whose lease is over.
func (p *pusher) close() {
	p.cancel()
	synctest.Wait()
}

// end returns how the monitor ended the stream.
func (p *pusher) end() *status.Status {
	p.t.Helper()
	var nothing emptypb.Empty
	return status.Convert(p.stream.RecvMsg(&nothing))
}

// watch starts a router.
func (m *whole) watch(o client.Options) *client.Client {
	m.t.Helper()
	o.DialOptions = append(o.DialOptions, grpc.WithContextDialer(m.network.dialer(fmt.Sprintf("router%d", m.dialled.Add(1)))))
	c, err := client.Dial("passthrough:///monitor", o)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(c.Close)
	return c
}

// settle lets everything that is due now be published and seen.
func settle() {
	time.Sleep(slack)
	synctest.Wait()
}

// worker returns a worker of the newest snapshot.
func (m *whole) worker(id string) *loadmonitorpb.Worker {
	m.t.Helper()
	settle()
	s, err := getSnapshot(context.Background(), m.reader, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, w := range s.GetWorkers() {
		if w.GetId() == id {
			return w
		}
	}
	m.t.Fatalf("worker %s is not in the snapshot: %v", id, s)
	return nil
}

// shown returns a worker as a router sees it; the test fails when it is not there.
func shown(t *testing.T, c *client.Client, id string) client.Worker {
	t.Helper()
	settle()
	w, ok := c.View().Worker(id)
	if !ok {
		t.Fatalf("worker %s is not in the view", id)
	}
	return w
}

// decoder is worker W1 of the cases.
func decoder() load.Worker {
	return load.Worker{
		ID: "w1", URL: "http://10.9.0.5:30000", Origin: "10.9.0.5:30000", Role: load.RoleDecode, Models: []string{"m1"}, Zone: "z1",
		Transport: load.TransportPush,
	}
}

// sane is report R of the cases: a report of W1 that says nothing unusual.
func sane(source string, seq uint64, ranks ...*modelgatewaypb.RankLoad) *modelgatewaypb.LoadReport {
	now := time.Now().UnixMilli()
	for _, r := range ranks {
		r.SnapshotTimeUnixMs = now
	}
	return &modelgatewaypb.LoadReport{
		SourceInstanceId: source, SequenceId: seq, ReportTimeUnixMs: now, Status: modelgatewaypb.ReportStatus_REPORT_STATUS_HEALTHY,
		Worker: &modelgatewaypb.Worker{
			WorkerAddr: "http://10.9.0.5:30000", WorkerType: modelgatewaypb.WorkerType_WORKER_TYPE_DECODE, Model: new("m1"), Zone: new("z1"),
		},
		Ranks: ranks,
	}
}

func rank(number int32, running int64) *modelgatewaypb.RankLoad {
	return &modelgatewaypb.RankLoad{
		DpRank: number, NumRunningReqs: running, NumUsedTokens: 100, NumTotalTokens: 100, MaxTotalNumTokens: 1000, MaxRunningRequests: 64,
	}
}

// ranks returns ranks 0 to n-1.
func ranks(n int32, running int64) []*modelgatewaypb.RankLoad {
	var list []*modelgatewaypb.RankLoad
	for i := range n {
		list = append(list, rank(i, running))
	}
	return list
}
