package watch

import (
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/loadmonitor/loadmonitor/internal/proxy"
)

// Case I3: on a quiet fleet nothing fills up on the way to peers that are gone without FIN or RST, so no send ever blocks.
// Keepalive finds their connections dead, and nothing of their watchers is left. It counts the goroutines of the process,
// so it runs beside no other test.
func TestWatch_LeavesNothingBehindVanishedPeers(t *testing.T) {
	const conns, each = 5, 20
	svc := newService(t, Options{Source: newSource(bigFleet(50).publish())})
	addr := serveTCP(t, svc, grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Second, Timeout: 200 * time.Millisecond}))
	p := proxy.Start(t, addr)
	base := runtime.NumGoroutine()
	var clients []*grpc.ClientConn
	for range conns {
		cc := connect(t, "passthrough:///"+p.Addr())
		clients = append(clients, cc)
		for range each {
			receiveRaw(t, cc)
		}
	}
	await := func(what string, holds func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d watchers, %d goroutines of %d", what, svc.pace.watchers.Load(), runtime.NumGoroutine(), base)
			}
		}
	}
	await("not every watcher has its picture", func() bool { return svc.counters.framesSent.Load() == conns*each })
	p.Freeze()
	await("watchers are left", func() bool { return svc.pace.watchers.Load() == 0 })
	wantMetrics(t, svc, map[string]float64{"watchers_stuck_total": 0})
	for _, cc := range clients { // what the other end of the wire runs
		cc.Close()
	}
	p.Close()
	await("goroutines are left", func() bool { return runtime.NumGoroutine() <= base })
}
