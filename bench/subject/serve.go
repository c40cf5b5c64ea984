package subject

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// serverOptions are those of the product (server/grpc.go): a ceiling with others would be no ceiling.
func serverOptions() []grpc.ServerOption {
	const window = 64 << 10
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(1 << 20),
		grpc.MaxConcurrentStreams(1024),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(window),
		grpc.ReadBufferSize(8 << 10),
		grpc.WriteBufferSize(32 << 10),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
}

// serve serves g on a free port until ctx ends.
func serve(ctx context.Context, g *grpc.Server, ready func(addr string)) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, g.Stop)
	defer stop()
	ready(l.Addr().String())
	return g.Serve(l)
}
