package watch

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// receiveEnv makes the test binary receive as many watches as its value says from the address that follows: a process of
// its own, so that what receiving costs is not counted as sending.
const receiveEnv = "LOADMONITOR_WATCH_RECEIVE"

func TestMain(m *testing.M) {
	if os.Getenv(receiveEnv) != "" {
		if err := receive(os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func BenchmarkEncodeWorker(b *testing.B) {
	ws := everything(8)
	b.ReportAllocs()
	b.SetBytes(int64(len(encodeWorker(ws).bytes)))
	for b.Loop() {
		encodeWorker(ws)
	}
}

// bigFleet has workers of 8 ranks each, a tenth of them in zone z0.
func bigFleet(workers int) *fleet {
	f := newFleet()
	for i := range workers {
		f.put(fmt.Sprintf("10.9.%d.%d:30000", i/256, i%256), func(ws *load.WorkerStatus) {
			handle := ws.Handle
			full := everything(8)
			full.Handle, full.Worker.ID, full.Freshness, full.Worker.Zone = handle, ws.Worker.ID, load.Fresh, fmt.Sprint("z", i%10)
			full.Memo = load.Memo{}
			*ws = load.WorkerStatus{
				Worker: full.Worker, Handle: handle, Freshness: load.Fresh, Aggregate: full.Aggregate, Ranks: full.Ranks, Window: full.Window,
			}
		})
	}
	return f
}

// BenchmarkPublishOneChange is what one report costs beyond the aggregator until every watcher has its frames in hand:
// the next table, the changed worker and the frame encoded once, and a lookup for each watcher.
func BenchmarkPublishOneChange(b *testing.B) {
	const watchers = 64
	for _, workers := range []int{100, 1024, 10_000} {
		b.Run(fmt.Sprint("workers=", workers), func(b *testing.B) {
			snap := bigFleet(workers).publish()
			svc := newService(b, Options{Source: newSource(snap)})
			v := mustView(b, withRanks)
			for e := range snap.Workers.All() {
				encoded(e.WorkerStatus)
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				i = (i + 7919) % workers
				old := snap.Workers.At(i)
				edit := snap.Workers.Edit(snap.Version + 1)
				edit.Set(i, &load.Entry{WorkerStatus: &load.WorkerStatus{
					Worker: old.Worker, Handle: old.Handle, Freshness: load.Fresh, Aggregate: old.Aggregate, Ranks: old.Ranks,
					Window: old.Window, ChangedVersion: snap.Version + 1, DescribedVersion: old.DescribedVersion,
				}})
				snap = &load.Snapshot{
					Epoch: snap.Epoch, Version: snap.Version + 1, State: snap.State, Summary: snap.Summary, Workers: edit.Table(),
				}
				for range watchers {
					svc.updateFrames(snap, snap.Version-1, v)
				}
			}
		})
	}
}

func BenchmarkDelta(b *testing.B) {
	f := bigFleet(10_000)
	f.publish()
	f.report("10.9.7.7:30000", 1, 2, 3)
	snap := f.publish()
	for _, bc := range []struct {
		name string
		req  *loadmonitorpb.WatchRequest
		base uint64
	}{
		{"one change", withRanks, 1},
		{"one change, one zone", filtered(loadmonitorpb.Filter_builder{Zones: []string{"z3"}}), 1},
		{"one change, three ids", filtered(loadmonitorpb.Filter_builder{Ids: []string{"10.9.7.7:30000", "10.9.7.8:30000", "10.9.7.9:30000"}}), 1},
		{"full picture", withRanks, 0},
	} {
		b.Run(bc.name, func(b *testing.B) {
			v := mustView(b, bc.req)
			b.ReportAllocs()
			for b.Loop() {
				u := delta(snap, bc.base, v)
				encodeUpdate(snap, &u, v, v.summary(snap), 1000, 3<<20)
			}
		})
	}
}

// BenchmarkSendCost measures what the pace assumes: the CPU that this process spends for a frame, in SendMsg and behind
// it, over TCP with one connection for each watcher. cpu/send divided by sendmsg/send is sendShare. The bare server does
// nothing but hand the same bytes to grpc; the difference is what a watcher costs in this package.
func BenchmarkSendCost(b *testing.B) {
	for _, watchers := range []int{10, 100, 1000} {
		for _, bare := range []bool{true, false} {
			b.Run(fmt.Sprintf("watchers=%d/bare=%v", watchers, bare), func(b *testing.B) { benchmarkSends(b, watchers, bare) })
		}
	}
}

func benchmarkSends(b *testing.B, watchers int, bare bool) {
	f := bigFleet(100)
	src := newSource(f.publish())
	svc := newService(b, Options{Source: src})
	mounted := loadmonitorpb.SnapshotServiceServer(svc)
	if bare {
		mounted = &bareService{svc: svc, v: mustView(b, withRanks)}
	}
	addr := serveTCP(b, mounted)
	cmd := exec.Command(os.Args[0], strconv.Itoa(watchers), addr)
	cmd.Env = append(os.Environ(), receiveEnv+"=1")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	sentAll := func(n int) {
		for svc.counters.framesSent.Load() < uint64(n) {
			time.Sleep(5 * time.Millisecond)
		}
	}
	sentAll(watchers)
	// Paced arrivals: a saturated loop costs much less for each frame, and nobody runs one.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	before := cpuTime()
	rounds := 0
	for b.Loop() {
		rounds++
		<-tick.C
		f.report("10.9.0.7:30000", int64(rounds), 2, 3, 4, 5, 6, 7, 8)
		src.publish(f.publish())
		sentAll(watchers * (rounds + 1))
	}
	cpu := float64((cpuTime() - before).Nanoseconds()) / float64(watchers*rounds)
	b.ReportMetric(cpu, "cpu-ns/send")
	bytes := float64(svc.counters.bytesSent.Load()) / float64(svc.counters.framesSent.Load())
	b.ReportMetric((float64(svc.pace.cost.Load())-bytes/1000*float64(kilobyteCost))/sendShare, "sendmsg-ns/send")
}

// bareService is the least that a server can do to send the same bytes to the same watchers at the same time.
type bareService struct {
	loadmonitorpb.UnimplementedSnapshotServiceServer
	svc *Service
	v   *view
}

func (s *bareService) Watch(_ *loadmonitorpb.WatchRequest, stream grpc.ServerStreamingServer[loadmonitorpb.WatchResponse]) error {
	for base := uint64(0); ; {
		p := s.svc.source.Current()
		for _, f := range s.svc.updateFrames(p.Snapshot, base, s.v).frames {
			if err := stream.SendMsg(newFrame(f, 0, nil)); err != nil {
				return err
			}
			s.svc.counters.framesSent.Add(1)
		}
		base = p.Snapshot.Version
		select {
		case <-p.Next:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// rawCodec leaves received bytes alone.
type rawCodec struct{ encoding.CodecV2 }

func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if raw, ok := v.(*[]byte); ok {
		*raw = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

func receive(watchers, addr string) error {
	n, err := strconv.Atoi(watchers)
	if err != nil {
		return err
	}
	var streams sync.WaitGroup
	for range n {
		cc, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{Codec()})),
			grpc.WithStaticStreamWindowSize(1<<20), grpc.WithStaticConnWindowSize(1<<20))
		if err != nil {
			return err
		}
		stream, err := cc.NewStream(context.Background(), &loadmonitorpb.SnapshotService_ServiceDesc.Streams[0],
			loadmonitorpb.SnapshotService_Watch_FullMethodName)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(withRanks); err != nil {
			return err
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		streams.Go(func() {
			var b []byte
			for stream.RecvMsg(&b) == nil {
			}
		})
	}
	streams.Wait()
	return nil
}
