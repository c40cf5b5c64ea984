package watch

import (
	"context"
	"encoding/base64"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// recorder plays a fleet to a real service and writes down what one watcher receives.
type recorder struct {
	t     *testing.T
	f     *fleet
	src   *source
	clock atomic.Int64
	conn  grpc.ClientConnInterface
	trace trace

	r      receiver
	cancel context.CancelFunc
	frames chan []byte
}

// recording runs play in a bubble.
func recording(about string, o Options, play func(r *recorder)) func(t *testing.T) *trace {
	return func(t *testing.T) *trace {
		var tr trace
		synctest.Test(t, func(t *testing.T) {
			r := &recorder{t: t, f: newFleet(), trace: trace{About: about}}
			r.f.epoch = "epoch-A"
			r.serve(o, r.f.publish())
			play(r)
			r.cancel()
			synctest.Wait()
			tr = r.trace
		})
		return &tr
	}
}

func (r *recorder) serve(o Options, s *load.Snapshot) {
	r.src = newSource(s)
	r.src.clock = func() load.Instant { return load.Instant(r.clock.Load()) }
	r.setClock()
	o.Source = r.src
	r.conn = serveConn(r.t, newService(r.t, o))
}

// open opens a stream that asks for req, resuming from what the receiver holds if it should.
func (r *recorder) open(about string, req *loadmonitorpb.WatchRequest, resume bool) {
	t := r.t
	if r.cancel != nil {
		r.cancel()
		synctest.Wait()
	}
	req = proto.CloneOf(req)
	if resume {
		req.SetResume(loadmonitorpb.Resume_builder{Epoch: r.r.epoch, Version: r.r.version, View: r.r.view}.Build())
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	r.trace.Streams = append(r.trace.Streams, traceStream{Request: plain(t, req), RequestBytes: base64.StdEncoding.EncodeToString(b)})

	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	desc := &loadmonitorpb.SnapshotService_ServiceDesc.Streams[0]
	stream, err := r.conn.NewStream(ctx, desc, loadmonitorpb.SnapshotService_Watch_FullMethodName, grpc.ForceCodecV2(rawCodec{Codec()}))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(req); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	frames := make(chan []byte, 100)
	r.frames = frames
	go func() {
		defer close(frames)
		for {
			var b []byte
			if stream.RecvMsg(&b) != nil {
				return
			}
			frames <- b
		}
	}()
	r.take(about)
}

// publish publishes what the fleet has become and writes down the update.
func (r *recorder) publish(about string) {
	r.push()
	r.take(about)
}

// push publishes what the fleet has become.
func (r *recorder) push() {
	s := r.f.publish()
	r.setClock()
	r.src.publish(s)
}

// setClock lets the service's clock show the fleet's time.
func (r *recorder) setClock() { r.clock.Store(int64(r.f.now) + 250) }

// beat beats and writes down the frame.
func (r *recorder) beat(about string) {
	r.setClock()
	r.src.beat()
	r.take(about)
}

// take writes down the one update that arrived. An empty about says that nothing arrives.
func (r *recorder) take(about string) {
	t := r.t
	t.Helper()
	synctest.Wait()
	u := traceUpdate{About: about}
	for len(r.frames) > 0 {
		b := <-r.frames
		u.Frames = append(u.Frames, base64.StdEncoding.EncodeToString(b))
		m := &loadmonitorpb.WatchResponse{}
		if err := proto.Unmarshal(b, m); err != nil {
			t.Fatal(err)
		}
		if err := r.r.take(m); err != nil {
			t.Fatal(err)
		}
	}
	if (about == "") != (u.Frames == nil) {
		t.Fatalf("%q: %d frames", about, len(u.Frames))
	}
	if about == "" {
		return
	}
	u.View = plainView(t, &r.r)
	s := &r.trace.Streams[len(r.trace.Streams)-1]
	s.Updates = append(s.Updates, u)
}

// twoWorkers registers a decode worker with everything told of its two ranks, and a prefill worker with little.
func (r *recorder) twoWorkers() {
	r.f.put("decode-1", func(ws *load.WorkerStatus) {
		full := everything(2)
		ws.Worker = full.Worker
		ws.Worker.ID, ws.Worker.ExpectedRanks = "decode-1", 2
		ws.Freshness, ws.SourceInstance, ws.Sequence, ws.Aggregate, ws.Ranks = load.Fresh, "source-1", 17, full.Aggregate, full.Ranks
		for i := range ws.Ranks {
			ws.Ranks[i].Received = r.f.now
		}
	})
	r.f.report("prefill-1", 3, 0)
	r.f.put("prefill-1", func(ws *load.WorkerStatus) { ws.Worker.Role, ws.Worker.Zone = load.RolePrefill, "z2" })
}

var recordings = map[string]func(t *testing.T) *trace{
	"full": recording("A full picture: every field told, and a worker of which little is known.", Options{}, func(r *recorder) {
		r.twoWorkers()
		r.f.put("silent-1", nil)
		r.push()
		r.open("base_version 0 replaces everything", withRanks, false)
	}),
	"delta": recording("Deltas: a changed worker, a removed one, a new one, and refresh marks.", Options{}, func(r *recorder) {
		r.twoWorkers()
		r.f.report("plain-1", 1)
		r.f.report("plain-2", 1, 1)
		r.push()
		r.open("full picture", withRanks, false)
		r.f.report("plain-1", 9)
		r.f.remove("prefill-1")
		r.f.refresh("decode-1")
		r.publish("a change, a removal and a mark in one update")
		r.f.now += 100_000
		r.f.refresh("decode-1")
		r.f.refresh("plain-1")
		r.publish("marks alone: two workers were heard of again with unchanged values")
		r.f.report("plain-2", 2, 2)
		r.f.put("plain-2", func(ws *load.WorkerStatus) {
			ws.Freshness, ws.Ranks[1].Freshness, ws.RankReasons = load.Stale, load.Stale, []string{"", "no report within 3s"}
		})
		r.publish("one of two ranks goes stale")
		r.f.now += 100_000
		r.f.refresh("plain-2")
		r.publish("a mark raises received_us of the fresh rank only")
		r.f.remove("plain-1")
		r.f.report("plain-3", 4)
		r.publish("a worker goes and another comes, with a handle of its own")
	}),
	"split": recording("Updates in several frames: nothing is applied before the one with last. (The bound on a frame is 700 bytes here.)",
		Options{MaxFrameBytes: 700}, func(r *recorder) {
			for _, id := range []string{"a", "b", "c", "d", "e"} {
				r.f.report(id, 1, 2, 3, 4, 5, 6)
			}
			r.push()
			r.open("a full picture in several frames", withRanks, false)
			for _, id := range []string{"a", "b", "c", "d"} {
				r.f.report(id, 6, 5, 4, 3, 2, 1)
			}
			r.f.remove("e")
			r.publish("a delta in several frames")
		}),
	"filter": recording("A filtered view: workers enter and leave it, its version is the fleet's, its summary is its own.", Options{}, func(r *recorder) {
		r.twoWorkers()
		r.push()
		req := loadmonitorpb.WatchRequest_builder{
			Ranks: true, Filter: loadmonitorpb.Filter_builder{Roles: []loadmonitorpb.Role{loadmonitorpb.Role_ROLE_PREFILL}}.Build(),
		}.Build()
		r.open("one of two workers is in the view", req, false)
		r.f.put("decode-1", func(ws *load.WorkerStatus) { ws.Sequence++ })
		r.publish("")
		r.beat("")
		r.beat("the version moved without content: an update of nothing takes the place of the heartbeat")
		r.f.put("prefill-1", func(ws *load.WorkerStatus) { ws.Worker.Role = load.RoleRegular })
		r.publish("the worker leaves the filter: the view is empty, the fleet is not")
		r.f.put("decode-1", func(ws *load.WorkerStatus) { ws.Worker.Role = load.RolePrefill })
		r.publish("another one enters it")
	}),
	"heartbeat": recording("Heartbeats: base_version equal to version, no content and no summary.", Options{Heartbeat: 500 * time.Millisecond}, func(r *recorder) {
		r.f.report("plain-1", 1)
		r.push()
		r.open("full picture", withRanks, false)
		r.beat("")
		r.f.now += 500_000
		r.beat("nothing was sent since the last beat")
		r.f.now += 500_000
		r.beat("nor since this one")
	}),
	"resume": recording("A receiver that resumes gets what it missed.", Options{}, func(r *recorder) {
		r.f.report("plain-1", 1)
		r.f.report("plain-2", 1)
		r.push()
		r.open("full picture", withRanks, false)
		r.cancel()
		synctest.Wait()
		r.f.report("plain-1", 2)
		r.push()
		r.f.remove("plain-2")
		r.push()
		r.open("two versions were missed", withRanks, true)
		r.open("none was missed: a heartbeat comes first", withRanks, true)
		r.open("the options differ, so the view does, and the full picture comes", loadmonitorpb.WatchRequest_builder{}.Build(), true)
	}),
	"new_epoch": recording("The monitor was restarted: versions start anew under another epoch, so a resume gets the full picture.", Options{}, func(r *recorder) {
		r.f.report("plain-1", 1)
		r.push()
		r.push()
		r.open("full picture", withRanks, false)
		r.f = newFleet()
		r.f.epoch = "epoch-B"
		r.f.report("plain-2", 2)
		r.serve(Options{}, r.f.publish())
		r.open("of another epoch, with a lower version", withRanks, true)
		r.f.report("plain-2", 3)
		r.publish("deltas go on from there")
	}),
	"no_ranks": recording("Without ranks: workers have their aggregate only, and marks raise oldest_received_us.", Options{}, func(r *recorder) {
		r.twoWorkers()
		r.push()
		r.open("full picture", loadmonitorpb.WatchRequest_builder{}.Build(), false)
		r.f.now += 100_000
		r.f.refresh("prefill-1")
		r.publish("a mark")
	}),
	"full_only": recording("With full_only each update is a full picture.", Options{}, func(r *recorder) {
		r.f.report("plain-1", 1)
		r.f.report("plain-2", 1)
		r.push()
		r.open("full picture", loadmonitorpb.WatchRequest_builder{FullOnly: true}.Build(), false)
		r.f.report("plain-1", 2)
		r.publish("one worker changed")
		r.f.now += 100_000
		r.f.refresh("plain-2")
		r.publish("one was heard of again: a full picture has its marks")
	}),
	"empty": recording("A fleet without workers, and one that loses its last.", Options{}, func(r *recorder) {
		r.f.setState(load.FleetNoWorkers)
		r.push()
		r.open("the first frame comes although there is nothing to show", withRanks, false)
		r.f.report("plain-1", 1)
		r.publish("the first worker")
		r.f.remove("plain-1")
		r.publish("the last one went")
	}),
	"warming_up": recording("A monitor that has not discovered its workers yet says so.", Options{}, func(r *recorder) {
		r.open("an empty list that may be short", withRanks, false)
		r.f.put("plain-1", nil)
		r.publish("discovery found a worker that has not reported")
		r.f.report("plain-1", 1)
		r.publish("and now has")
	}),
	"gap": func(t *testing.T) *trace {
		r := recording("What no monitor sends: an update from a version that the receiver does not hold. It opens a new stream without resume.",
			Options{}, func(r *recorder) {
				r.f.report("plain-1", 1)
				r.push()
				r.open("full picture", withRanks, false)
				r.f.publish()
				r.f.report("plain-1", 2)
				s := r.f.publish()
				v := mustView(r.t, withRanks)
				u := delta(s, 3, v)
				b := encodeUpdate(s, &u, v, s.Summary, 1000, 3<<20)[0]
				stream := &r.trace.Streams[0]
				stream.Updates = append(stream.Updates, traceUpdate{
					About: "from version 3, but the receiver holds 2: the view stays", Restart: true,
					Frames: []string{base64.StdEncoding.EncodeToString(b)}, View: stream.Updates[0].View,
				})
			})
		return r(t)
	},
}
