package client

import (
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/internal/proxy"
	"github.com/loadmonitor/loadmonitor/load"
)

// A link that freezes closes nothing: no error ever arrives. Real sockets, so the heartbeat is short instead of the time
// being fake.
func TestClient_FrozenLinkIsNoticedAndLeftBehind(t *testing.T) {
	const heartbeat = 40 * time.Millisecond
	started := time.Now().Add(-time.Minute)
	send := func(s *session, r *loadmonitorpb.WatchResponse) error {
		r.SetNowUs(uint64(time.Since(started).Microseconds()))
		r.SetHeartbeatMs(uint32(heartbeat.Milliseconds()))
		return s.stream.Send(r)
	}
	m := &monitor{}
	m.scripts = []func(*session) error{func(s *session) error {
		version := uint64(4 + m.tries())
		w := with(aWorker(1, int64(version), uint64(time.Since(started).Microseconds())), func(w *loadmonitorpb.Worker) { w.SetFreshnessWindowMs(400) })
		if err := send(s, full(version, w)); err != nil {
			return err
		}
		for {
			if err := s.sleep(heartbeat); err != nil {
				return err
			}
			if err := send(s, frame{Epoch: "e", View: "v", BaseVersion: version, Version: version, Last: true}.Build()); err != nil {
				return err
			}
		}
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	loadmonitorpb.RegisterSnapshotServiceServer(server, m)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	p := proxy.Start(t, l.Addr().String())
	c, err := Dial(p.Addr(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	first := wait(t, c, 10*time.Second, func(v *View) bool { return v.Link.Up && v.Version >= 5 })
	p.Freeze()
	down := wait(t, c, 10*time.Second, func(v *View) bool { return !v.Link.Up })
	stale := wait(t, c, 10*time.Second, func(v *View) bool { return v.Summary.Fresh == 0 })
	if w, _ := stale.ByHandle(1); down.Epoch != "e" || w.Freshness != load.Stale || w.Reason == "" {
		t.Errorf("epoch %q, worker %v, %q", down.Epoch, w.Freshness, w.Reason)
	}
	if freshness(first, 1) != load.Fresh {
		t.Error("the view before has changed")
	}
	p.Unfreeze()
	up := wait(t, c, 20*time.Second, func(v *View) bool { return v.Link.Up && v.Version > 5 })
	if freshness(up, 1) != load.Fresh || m.request(1).GetResume().GetVersion() != 5 {
		t.Errorf("worker %v, resumed %v", freshness(up, 1), m.request(1).GetResume())
	}
}
