//lint:file-ignore SA1019 tools in the field still speak the v1alpha reflection, so it is served and tested.

package server

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/loadmonitor/loadmonitor/load"
)

var servedNames = []string{
	"",
	"model_gateway.loadmonitor.v1.LoadMonitorService",
	"router.loadmonitor.v1.LoadMonitorService",
	"loadmonitor.v1.SnapshotService",
	"loadmonitor.v1.RegistryService",
}

// Case M5: no name serves before the first discovery pass has ended, and all do after it.
func TestHealth_FollowsReadinessForEveryName(t *testing.T) {
	snap := newFakeSnapshots(load.FleetWarmingUp)
	r := start(t, Options{Snapshots: snap, Snapshot: newFakeWatch()})
	client := healthpb.NewHealthClient(r.dial())
	check := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, name := range servedNames {
			got, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
			if err != nil || got.GetStatus() != want {
				t.Errorf("%q is %v, %v; want %v", name, got.GetStatus(), err, want)
			}
		}
		list, err := client.List(t.Context(), &healthpb.HealthListRequest{})
		if err != nil || len(list.GetStatuses()) != len(servedNames) {
			t.Errorf("list is %v, %v", list, err)
		}
	}
	check(healthpb.HealthCheckResponse_NOT_SERVING)
	_, changed := r.ready.phase()
	snap.publish(load.FleetNoWorkers)
	next(t, changed, "readiness")
	check(healthpb.HealthCheckResponse_SERVING)

	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown service is %v", err)
	}
}

// Case M5: a watcher of health sees each change, NOT_SERVING before the end, and then why it ended.
func TestHealth_WatchTellsEachChangeAndEnds(t *testing.T) {
	snap := newFakeSnapshots(load.FleetWarmingUp)
	r := start(t, Options{Snapshots: snap})
	stream, err := healthpb.NewHealthClient(r.dial()).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: AliasServiceName})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		got, err := stream.Recv()
		if err != nil || got.GetStatus() != want {
			t.Fatalf("told %v, %v; want %v", got.GetStatus(), err, want)
		}
	}
	expect(healthpb.HealthCheckResponse_NOT_SERVING)
	snap.publish(load.FleetReady)
	expect(healthpb.HealthCheckResponse_SERVING)
	r.shutdown()
	expect(healthpb.HealthCheckResponse_NOT_SERVING)
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the watch ended with %v", err)
	}
}

func TestHealth_WatchOfUnknownServiceIsTold(t *testing.T) {
	r := start(t, Options{})
	stream, err := healthpb.NewHealthClient(r.dial()).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "nobody"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := stream.Recv(); err != nil || got.GetStatus() != healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		t.Errorf("told %v, %v", got, err)
	}
}

// Tools find every service in both versions of reflection, the alias of the report service with its messages.
func TestReflection_DescribesTheAlias(t *testing.T) {
	r := start(t, Options{})
	cc := r.dial()
	stream, err := reflectionpb.NewServerReflectionClient(cc).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(req *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	for _, symbol := range []string{AliasServiceName, "model_gateway.loadmonitor.v1.LoadMonitorService", "loadmonitor.v1.RegistryService"} {
		resp := ask(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: symbol}})
		var file descriptorpb.FileDescriptorProto
		if files := resp.GetFileDescriptorResponse().GetFileDescriptorProto(); len(files) == 0 || proto.Unmarshal(files[0], &file) != nil {
			t.Fatalf("%s: %v", symbol, resp)
		}
		if symbol == AliasServiceName {
			in := file.GetService()[0].GetMethod()[0].GetInputType()
			if file.GetPackage() != "router.loadmonitor.v1" || in != ".router.loadmonitor.v1.LoadReport" {
				t.Errorf("package %s, input %s", file.GetPackage(), in)
			}
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}

	alpha, err := reflectionalphapb.NewServerReflectionClient(cc).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := alpha.Send(&reflectionalphapb.ServerReflectionRequest{MessageRequest: &reflectionalphapb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	list, err := alpha.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range list.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	for _, want := range []string{AliasServiceName, "loadmonitor.v1.RegistryService", "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("services are %v, without %s", names, want)
		}
	}
	if err := alpha.CloseSend(); err != nil {
		t.Fatal(err)
	}
}
