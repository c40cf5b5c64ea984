package main

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

// dial connects over gRPC, and again soon while nobody listens.
func dial(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond},
			MinConnectTimeout: 20 * time.Second,
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// Case M5 over gRPC, from the first moment on: no name serves before the first discovery pass, and no picture shows a
// fleet that is known and short. Three workers are dead. A long publish interval stretches the time before the pass shows.
func TestServe_HealthAndWatchFromTheFirstMoment(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m := serve(t, append(fast, "--publish-interval", "300ms", "--workers-file", withDeadWorkers(t))...)
	cc := dial(t, m.grpc)
	health, snapshots := healthpb.NewHealthClient(cc), loadmonitorpb.NewSnapshotServiceClient(cc)
	known := func(what string, s *loadmonitorpb.Summary) bool {
		switch s.GetState() {
		case loadmonitorpb.FleetState_FLEET_STATE_WARMING_UP:
			return false
		case loadmonitorpb.FleetState_FLEET_STATE_READY:
			if s.GetWorkers() == 20 {
				return true
			}
		}
		t.Errorf("%s: state %v with %d workers", what, s.GetState(), s.GetWorkers())
		return true
	}
	warming := 0
	for serving := false; !serving; {
		watching, end := context.WithCancel(ctx)
		watch, err := snapshots.Watch(watching, &loadmonitorpb.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		frame, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		end()
		if !frame.GetLast() || frame.GetBaseVersion() != 0 {
			t.Fatalf("first frame %v, want a full picture", frame)
		}
		if !known("first picture of a watch", frame.GetSummary()) {
			warming++
		}
		serving = true
		for _, name := range []string{"", loadmonitorpb.SnapshotService_ServiceDesc.ServiceName} {
			got, err := health.Check(ctx, &healthpb.HealthCheckRequest{Service: name})
			if err != nil {
				t.Fatal(err)
			}
			serving = serving && got.GetStatus() == healthpb.HealthCheckResponse_SERVING
			if got.GetStatus() != healthpb.HealthCheckResponse_SERVING {
				continue
			}
			s, err := snapshots.GetSnapshot(ctx, &loadmonitorpb.GetSnapshotRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if !known("snapshot", s.GetSummary()) {
				t.Fatalf("health of %q is SERVING before the first discovery pass has ended", name)
			}
		}
	}
	t.Logf("%d watches began before the first discovery pass had ended", warming)
	m.until(ctx, "17 fresh and 3 missing", func(s snapshotJSON) bool { return s.Summary.Fresh == 17 && s.Summary.Missing == 3 })
}
