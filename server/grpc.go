package server

import (
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

// Figures of a gRPC connection that need no option.
const (
	// pingAfter and pingTimeout find a peer that is gone without a word, within their sum.
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// minPeerPing spares peers that ping every 10 s, whether or not they have a call open: it lies below that, so that
	// pings which arrive close together are not counted against them.
	minPeerPing = 5 * time.Second
	// handshakeTimeout ends connections that do not speak HTTP/2.
	handshakeTimeout = 10 * time.Second
	// window is the HTTP/2 window of streams and connections. A fixed one keeps gRPC from estimating bandwidth, which
	// costs a ping for every message received. Larger messages pass: the window grows while one is being read.
	window = 64 << 10
	// readBuffer holds several reports; writeBuffer is shared by connections, because most of them write next to nothing.
	readBuffer  = 8 << 10
	writeBuffer = 32 << 10
	headerBytes = 16 << 10
)

// newGRPC builds the gRPC server with every service registered.
func (s *Server) newGRPC(reg *registry) (*grpc.Server, error) {
	o := &s.opts
	g := grpc.NewServer(
		grpc.ForceServerCodecV2(newCodec(o.Codec)),
		grpc.UnaryInterceptor(s.unread.intercept),
		grpc.MaxRecvMsgSize(o.MaxMessageBytes),
		grpc.MaxConcurrentStreams(uint32(o.MaxStreamsPerConnection)),
		grpc.MaxHeaderListSize(headerBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(window),
		grpc.ReadBufferSize(readBuffer),
		grpc.WriteBufferSize(writeBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPeerPing, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)
	s.reports.register(g)
	loadmonitorpb.RegisterRegistryServiceServer(g, reg)
	if o.Snapshot != nil {
		loadmonitorpb.RegisterSnapshotServiceServer(g, o.Snapshot)
	}
	// Health knows the services above and the empty name; it does not speak of itself.
	h := &health{ready: s.ready, services: map[string]struct{}{"": {}}}
	for name := range g.GetServiceInfo() {
		h.services[name] = struct{}{}
	}
	healthpb.RegisterHealthServer(g, h)
	if err := registerReflection(g); err != nil {
		return nil, err
	}
	return g, nil
}
