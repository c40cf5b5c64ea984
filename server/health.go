package server

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/loadmonitor/loadmonitor/load"
)

// health is the standard health service over the server's readiness: one state for the empty name and for every service.
// grpc-go's own cannot end an open Watch, which would hold every shutdown up for the whole grace period.
type health struct {
	healthpb.UnimplementedHealthServer

	ready    *readiness
	services map[string]struct{} // immutable once the server serves
}

func (h *health) status(service string, p phase) (healthpb.HealthCheckResponse_ServingStatus, bool) {
	if _, ok := h.services[service]; !ok {
		return healthpb.HealthCheckResponse_SERVICE_UNKNOWN, false
	}
	if p == serving {
		return healthpb.HealthCheckResponse_SERVING, true
	}
	return healthpb.HealthCheckResponse_NOT_SERVING, true
}

func (h *health) Check(_ context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	p, _ := h.ready.phase()
	st, ok := h.status(req.GetService(), p)
	if !ok {
		return nil, status.Errorf(codes.NotFound, "unknown service %q", bounded(req.GetService(), 256))
	}
	return &healthpb.HealthCheckResponse{Status: st}, nil
}

func (h *health) List(context.Context, *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	p, _ := h.ready.phase()
	list := make(map[string]*healthpb.HealthCheckResponse, len(h.services))
	for name := range h.services {
		st, _ := h.status(name, p)
		list[name] = &healthpb.HealthCheckResponse{Status: st}
	}
	return &healthpb.HealthListResponse{Statuses: list}, nil
}

// Watch tells the state at once and on every change. On shutdown it tells NOT_SERVING and ends with UNAVAILABLE.
func (h *health) Watch(req *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	told := healthpb.HealthCheckResponse_UNKNOWN
	for {
		p, changed := h.ready.phase()
		if st, _ := h.status(req.GetService(), p); st != told {
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: st}); err != nil {
				return err
			}
			told = st
		}
		if p == closing {
			return streamStatus(load.ErrShuttingDown)
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}
