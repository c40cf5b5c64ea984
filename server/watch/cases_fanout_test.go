package watch

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// Case I2: watchers that never read and watchers that go at any moment slow nobody down; one that reads again gets the
// newest version next.
func TestCaseI2_StalledWatchersDoNotHoldOthersUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(1, 2))
		f := wideFleet(60)
		src := newSource(f.publish())
		svc := newService(t, Options{Source: src})
		lis := bufconn.Listen(64 << 10)
		serveOn(t, lis, svc)
		client := func() loadmonitorpb.SnapshotServiceClient {
			return dialOn(t, lis, func(c net.Conn) net.Conn { return c })
		}
		var stalled, reading []*collected
		for range 15 {
			stalled = append(stalled, open(t, client(), withRanks))
		}
		late := open(t, client(), withRanks)
		for range 3 {
			w := watch(t, client(), withRanks)
			time.AfterFunc(time.Duration(rnd.Int64N(int64(2*time.Second))), w.cancel)
		}
		for range 2 {
			reading = append(reading, watch(t, client(), withRanks))
		}
		synctest.Wait()
		svc.pace.cpus.Store(2)     // the pace is no limit here, whatever the machine has
		for n := range int64(25) { // at 10 Hz, for less than a stalled watcher is given
			for i := range 60 {
				widen(f, i, n)
			}
			src.publish(f.publish())
			synctest.Wait()
			for i, w := range reading {
				if w.holds() != f.version {
					t.Errorf("reading watcher %d holds version %d of %d", i, w.holds(), f.version)
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		go late.collect()
		synctest.Wait()
		versions := 0
		for _, a := range late.news() {
			if a.GetLast() {
				versions++
			}
		}
		if late.holds() != f.version || versions > 5 {
			t.Errorf("the late reader holds version %d of %d after %d updates: a backlog", late.holds(), f.version, versions)
		}
		for _, w := range stalled {
			w.cancel()
		}
		synctest.Wait()
		wantMetrics(t, svc, map[string]float64{"watchers": 3})
	})
}

// Case I3: clients whose connection drops leave nothing behind.
func TestCaseI3_DroppedConnectionsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.report("a", 1)
		svc := newService(t, Options{Source: newSource(f.publish())})
		lis := bufconn.Listen(64 << 10)
		serveOn(t, lis, svc)
		for range 50 {
			var raw net.Conn
			w := watch(t, dialOn(t, lis, func(c net.Conn) net.Conn { raw = c; return c }), withRanks)
			synctest.Wait()
			raw.Close()
			if err := w.ended(t); err == nil {
				t.Error("the stream ended as if all was well")
			}
		}
		synctest.Wait()
		wantMetrics(t, svc, map[string]float64{"watchers": 0})
	})
}

// Case I4: reports with equal values travel as marks and wake nobody more often than they are published.
func TestCaseI4_EqualValuesAreMarks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		for i := range 100 {
			f.report(fmt.Sprintf("w%02d", i), 1)
		}
		src := newSource(f.publish())
		w := watch(t, serve(t, newService(t, Options{Source: src})), withRanks)
		synctest.Wait()
		w.news()
		for range 10 {
			time.Sleep(100 * time.Millisecond)
			for i := range 100 {
				f.refresh(fmt.Sprintf("w%02d", i))
			}
			src.publish(f.publish())
		}
		synctest.Wait()
		got := w.news()
		if len(got) != 10 {
			t.Errorf("%d frames for 10 batches of marks", len(got))
		}
		for _, a := range got {
			if len(a.GetChanged()) != 0 || len(a.GetRefreshed()) != 100 || proto.Size(a) > 1200 {
				t.Errorf("%d changed, %d marks, %d bytes", len(a.GetChanged()), len(a.GetRefreshed()), proto.Size(a))
			}
		}
	})
}

// lateReader keeps what grpc shows it of messages going out, and what their bytes were then, and looks at it later, as
// tracing does.
type lateReader struct {
	t    testing.TB
	seed maphash.Seed

	mu   sync.Mutex
	kept []keptMessage
}

type keptMessage struct {
	payload any
	sent    uint64 // hash of the bytes as they went out
}

// bytesOf encodes a message as it goes out.
func bytesOf(t testing.TB, payload any) []byte {
	b, err := Codec().Marshal(payload)
	if err != nil {
		t.Errorf("marshal: %v", err)
	}
	return b.Materialize()
}

func (l *lateReader) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (l *lateReader) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return ctx
}
func (l *lateReader) HandleConn(context.Context, stats.ConnStats) {}
func (l *lateReader) HandleRPC(_ context.Context, s stats.RPCStats) {
	if out, ok := s.(*stats.OutPayload); ok {
		sent := maphash.Bytes(l.seed, bytesOf(l.t, out.Payload))
		l.mu.Lock()
		l.kept = append(l.kept, keptMessage{out.Payload, sent})
		l.mu.Unlock()
	}
}

// Case I6: with many watchers, a snapshot reader and somebody who looks at sent messages later, nothing is torn and
// nothing changes after it was sent. Each report says running = waiting.
func TestCaseI6_SharedBytesAreNeverTorn(t *testing.T) {
	t.Parallel()
	f := newFleet()
	const workers, versions = 30, 150
	for i := range workers {
		f.report(fmt.Sprintf("w%02d", i), 0, 0)
	}
	src := newSource(f.publish())
	svc := newService(t, Options{Source: src})
	late := &lateReader{t: t, seed: maphash.MakeSeed()}
	c := serve(t, svc, grpc.StatsHandler(late))

	check := func(ws []*loadmonitorpb.Worker) {
		for _, w := range ws {
			for _, r := range w.GetRanks() {
				if r.GetNumRunningReqs() != r.GetNumWaitingReqs() {
					t.Errorf("%s rank %d: running %d, waiting %d", w.GetId(), r.GetDpRank(), r.GetNumRunningReqs(), r.GetNumWaitingReqs())
				}
			}
		}
	}
	var readers sync.WaitGroup
	for i := range 20 {
		stream, err := c.Watch(t.Context(), []*loadmonitorpb.WatchRequest{
			withRanks, filtered(loadmonitorpb.Filter_builder{Ids: []string{"w01", "w02", "w03"}}),
		}[i%2])
		if err != nil {
			t.Fatal(err)
		}
		readers.Go(func() {
			var r receiver
			for last := uint64(0); last < versions; {
				m, err := stream.Recv()
				if err != nil {
					t.Errorf("stream: %v", err)
					return
				}
				if err := r.take(m); err != nil {
					t.Error(err)
					return
				}
				if r.version < last {
					t.Errorf("version %d after %d", r.version, last)
				}
				last = r.version
				check(r.sorted())
			}
		})
	}
	stopSnapshots := make(chan struct{})
	readers.Go(func() {
		var kept *loadmonitorpb.GetSnapshotResponse
		var before *loadmonitorpb.GetSnapshotResponse
		for {
			select {
			case <-stopSnapshots:
				if !proto.Equal(kept, before) {
					t.Error("a kept snapshot changed")
				}
				return
			default:
			}
			s, err := c.GetSnapshot(t.Context(), &loadmonitorpb.GetSnapshotRequest{})
			if err != nil {
				t.Errorf("snapshot: %v", err)
				return
			}
			if kept == nil {
				kept, before = s, proto.CloneOf(s)
			}
			check(s.GetWorkers())
		}
	})
	for v := range int64(versions) {
		for i := range workers {
			f.report(fmt.Sprintf("w%02d", i), v%1000, v%1000)
		}
		src.publish(f.publish())
		src.beat() // so that filtered views advance to the last version too
	}
	src.beat()
	close(stopSnapshots)
	readers.Wait()

	late.mu.Lock()
	defer late.mu.Unlock()
	frames := 0
	for _, k := range late.kept {
		b := bytesOf(t, k.payload)
		if maphash.Bytes(late.seed, b) != k.sent {
			t.Fatalf("a sent %T has other bytes later", k.payload)
		}
		if _, ok := k.payload.(*frame); !ok {
			continue
		}
		frames++
		m := &loadmonitorpb.WatchResponse{}
		if err := proto.Unmarshal(b, m); err != nil {
			t.Fatalf("a sent frame reads differently later: %v", err)
		}
		check(m.GetChanged())
	}
	if frames == 0 {
		t.Error("no frame was seen going out")
	}
}

// Case I7: 500 watchers of one view cost one encoding of each version, not one each.
func TestCaseI7_EncodingsFollowVersionsNotWatchers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const watchers, versions = 500, 5
		f := bigFleet(200)
		src := newSource(f.publish())
		svc := newService(t, Options{Source: src})
		cc := serveConn(t, svc)
		for range watchers {
			receiveRaw(t, cc)
		}
		synctest.Wait()
		for v := range versions {
			time.Sleep(200 * time.Millisecond)
			f.report(fmt.Sprintf("10.9.0.%d:30000", v), 1, 2, 3, 4, 5, 6, 7, 8)
			src.publish(f.publish())
			synctest.Wait()
		}
		wantMetrics(t, svc, map[string]float64{
			"watchers": watchers, "watch_frames_sent_total": watchers * (1 + versions), "watch_frames_encoded_total": 1 + versions,
		})
	})
}

// receiveRaw watches with ranks and decodes nothing of what arrives.
func receiveRaw(t *testing.T, cc *grpc.ClientConn) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stream, err := cc.NewStream(ctx, &loadmonitorpb.SnapshotService_ServiceDesc.Streams[0],
		loadmonitorpb.SnapshotService_Watch_FullMethodName, grpc.ForceCodecV2(rawCodec{Codec()}))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(withRanks); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	go func() {
		var b []byte
		for stream.RecvMsg(&b) == nil {
		}
	}()
}

// Case I9: a fleet beyond the default limit of 4 MiB a message reaches a stock client, watching and asking alike.
func TestCaseI9_LargeFleetReachesAStockClient(t *testing.T) {
	t.Parallel()
	f := bigFleet(3000)
	for id := range f.entries {
		f.put(id, func(ws *load.WorkerStatus) { ws.Worker.Models = []string{strings.Repeat("long-model-name/", 32)} })
	}
	src := newSource(f.publish())
	svc := newService(t, Options{Source: src})
	cc := dial(t, serveTCP(t, svc))
	stream, err := cc.Watch(t.Context(), withRanks)
	if err != nil {
		t.Fatal(err)
	}
	var r receiver
	frames := 0
	for r.updates == 0 {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if n := proto.Size(m); n > 3<<20 {
			t.Errorf("rule W6: frame of %d bytes", n)
		}
		if err := r.take(m); err != nil {
			t.Fatal(err)
		}
		frames++
	}
	if len(r.workers) != 3000 || frames < 2 || r.summary.GetWorkers() != 3000 {
		t.Errorf("%d workers in %d frames", len(r.workers), frames)
	}
	seen := 0
	req := &loadmonitorpb.GetSnapshotRequest{}
	for {
		p, err := cc.GetSnapshot(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		seen += len(p.GetWorkers())
		if p.GetNextPageToken() == "" {
			break
		}
		req.SetPageToken(p.GetNextPageToken())
	}
	if seen != 3000 {
		t.Errorf("%d workers on all pages", seen)
	}
}
