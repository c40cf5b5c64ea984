package server

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// Bounds of what is unread, bytes. A call that comes below them is answered, so they are passed by the pages in the making.
const (
	maxUnreadPerConnection = 12 << 20 // four pages
	maxUnread              = 256 << 20
)

// unread bounds the responses that wait for their peers (rule LIFE2). gRPC takes the response of a unary call whether or not
// the peer reads, and keeps it for as long as it may not be written to the connection.
//
// A response is charged before it is encoded. The charge is given back when gRPC frees the bytes: when the last one has
// been written, or the call is cancelled. gRPC frees neither what streams hold when their connection ends nor a response
// that meets the cancelling of its call. The end of the connection gives back the former, the garbage collector the latter.
type unread struct {
	// immutable
	perConnection, total int64         // bounds, bytes
	turns                chan struct{} // one for each page in the making
	episodes             *episodes

	refusedConnection, refusedServer atomic.Int64 // calls, by the bound

	mu    sync.Mutex
	bytes int64                  // of all connections
	conns map[string]*unreadConn // those that have something unread, by the address of the peer
}

type unreadConn struct {
	addr  string
	bytes int64
	ended bool // nothing is charged to it any more
}

func newUnread(ep *episodes) *unread {
	return &unread{
		perConnection: maxUnreadPerConnection,
		total:         maxUnread,
		turns:         make(chan struct{}, runtime.GOMAXPROCS(0)),
		episodes:      ep,
		conns:         make(map[string]*unreadConn),
	}
}

// large are the unary methods whose responses are charged, those of others have a few bytes; and whether a response is a
// page, of which only a few are made at a time.
var large = map[string]bool{
	loadmonitorpb.SnapshotService_GetSnapshot_FullMethodName:    true,
	loadmonitorpb.RegistryService_ListWorkers_FullMethodName:    true,
	loadmonitorpb.RegistryService_RegisterWorker_FullMethodName: false, // sends back what was sent, and waits for a pass
}

// intercept refuses a call when a bound is reached, and otherwise charges and encodes the response. As many pages as there
// are CPUs are made at a time, because a message takes far more memory before it is encoded.
func (u *unread) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	p, ok := peer.FromContext(ctx)
	page, isLarge := large[info.FullMethod]
	if !ok || !isLarge {
		return handler(ctx, req)
	}
	if page {
		select {
		case u.turns <- struct{}{}:
			defer func() { <-u.turns }()
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	addr := p.Addr.String()
	if err := u.admit(addr); err != nil {
		return nil, err
	}
	resp, err := handler(ctx, req)
	if err != nil {
		return nil, err
	}
	m := resp.(proto.Message)
	n := proto.Size(m)
	if mem.IsBelowBufferPoolingThreshold(n) { // gRPC does not say when it frees these
		return resp, nil
	}
	c := u.charge(addr, int64(n))
	r := &unreadResponse{charge: c}
	runtime.AddCleanup(r, (*charge).giveBack, c)
	if r.bytes, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(make([]byte, 0, n), m); err != nil {
		c.giveBack()
		return nil, status.Error(codes.Internal, err.Error())
	}
	return r, nil
}

// admit refuses a call of a peer when a bound is reached.
func (u *unread) admit(addr string) error {
	u.mu.Lock()
	var own int64
	if conn := u.conns[addr]; conn != nil {
		own = conn.bytes
	}
	all := u.bytes
	u.mu.Unlock()
	switch {
	case own >= u.perConnection:
		u.refusedConnection.Add(1)
		u.episodes.warn("unread_connection", "call refused: its peer does not read", "peer", addr, "unread_bytes", own, "max", u.perConnection)
		return status.Errorf(codes.ResourceExhausted,
			"%d bytes of responses are unread on this connection, at most %d: read responses before asking for more", own, u.perConnection)
	case all >= u.total:
		u.refusedServer.Add(1)
		u.episodes.warn("unread_server", "call refused: peers do not read", "peer", addr, "unread_bytes", all, "max", u.total)
		return status.Errorf(codes.ResourceExhausted,
			"%d bytes of responses are unread on all connections, at most %d: read responses before asking for more, and try again later", all, u.total)
	}
	return nil
}

func (u *unread) charge(addr string, n int64) *charge {
	u.mu.Lock()
	defer u.mu.Unlock()
	conn := u.conns[addr]
	if conn == nil {
		conn = &unreadConn{addr: addr}
		u.conns[addr] = conn
	}
	conn.bytes += n
	u.bytes += n
	return &charge{unread: u, conn: conn, bytes: n}
}

// ended gives back whatever is charged to the connection of a peer.
func (u *unread) ended(addr string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if conn := u.conns[addr]; conn != nil {
		u.bytes -= conn.bytes
		conn.bytes, conn.ended = 0, true
		delete(u.conns, addr)
	}
}

// unreadResponse is a response as it goes out.
type unreadResponse struct {
	bytes  []byte
	charge *charge
}

func (r *unreadResponse) buffers() mem.BufferSlice {
	return mem.BufferSlice{mem.NewBuffer(&r.bytes, r.charge)}
}

// charge is what one response takes of the bounds. It stands in for the pool to which gRPC returns the bytes.
type charge struct {
	unread *unread
	conn   *unreadConn
	bytes  int64 // guarded by unread.mu; 0: given back
}

// Get is never called: it only completes mem.BufferPool.
func (c *charge) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// Put gives the charge back.
func (c *charge) Put(*[]byte) { c.giveBack() }

func (c *charge) giveBack() {
	c.unread.mu.Lock()
	defer c.unread.mu.Unlock()
	if conn := c.conn; !conn.ended {
		c.unread.bytes -= c.bytes
		if conn.bytes -= c.bytes; conn.bytes == 0 {
			conn.ended = true
			delete(c.unread.conns, conn.addr)
		}
	}
	c.bytes = 0
}

func (u *unread) metrics() []load.Metric {
	return []load.Metric{
		gauge("unread_response_bytes", "Bytes of large gRPC responses that have not left for their connections yet.", func() float64 {
			u.mu.Lock()
			defer u.mu.Unlock()
			return float64(u.bytes)
		}),
		gauge("unread_response_bytes_limit", "Bytes of large gRPC responses that may be unread before calls are refused.",
			func() float64 { return float64(u.total) }),
		{Name: "unread_refused_total", Help: "gRPC calls refused because too many bytes of responses were unread, by the bound.", Counter: true,
			Collect: func(yield func(float64, ...load.Label)) {
				yield(float64(u.refusedConnection.Load()), load.Label{Name: "bound", Value: "connection"})
				yield(float64(u.refusedServer.Load()), load.Label{Name: "bound", Value: "server"})
			}},
	}
}
