package server

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

// pager is a SnapshotService with as many pages as it is told, each of pageSize bytes.
type pager struct {
	*fakeWatch
	pageSize, pages int
}

func (p *pager) GetSnapshot(_ context.Context, req *loadmonitorpb.GetSnapshotRequest) (*loadmonitorpb.GetSnapshotResponse, error) {
	n, _ := strconv.Atoi(req.GetPageToken())
	resp := loadmonitorpb.GetSnapshotResponse_builder{Epoch: strings.Repeat("x", p.pageSize), Version: 1}.Build()
	if n+1 < p.pages {
		resp.SetNextPageToken(strconv.Itoa(n + 1))
	}
	return resp, nil
}

// readAll reads every page as a stock client does and returns how many there were.
func readAll(ctx context.Context, cc grpc.ClientConnInterface) (pages int, err error) {
	c := loadmonitorpb.NewSnapshotServiceClient(cc)
	for token := ""; ; pages++ {
		p, err := c.GetSnapshot(ctx, loadmonitorpb.GetSnapshotRequest_builder{PageToken: token}.Build())
		if err != nil {
			return pages, err
		}
		if token = p.GetNextPageToken(); token == "" {
			return pages + 1, nil
		}
	}
}

// rawPeer is an HTTP/2 connection that makes calls, answers pings and never opens its window, so that it gets headers and
// 64 KiB of data.
type rawPeer struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer
	block  bytes.Buffer // an encoded header list
	enc    *hpack.Encoder
	calls  uint32
	done   chan struct{}

	mu       sync.Mutex        // held for each frame that is written
	statuses map[string]string // message by grpc-status, of the calls that ended; guarded by mu, complete after close
}

func newRawPeer(t *testing.T, addr string) *rawPeer {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	p := &rawPeer{t: t, conn: conn, framer: http2.NewFramer(conn, conn), done: make(chan struct{}), statuses: make(map[string]string)}
	p.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.enc = hpack.NewEncoder(&p.block)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := p.framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	go p.read()
	t.Cleanup(p.close)
	return p
}

func (p *rawPeer) close() {
	_ = p.conn.Close()
	<-p.done
}

func (p *rawPeer) read() {
	defer close(p.done)
	for {
		f, err := p.framer.ReadFrame()
		if err != nil {
			return
		}
		if ping, ok := f.(*http2.PingFrame); ok && !ping.IsAck() {
			p.mu.Lock()
			_ = p.framer.WritePing(true, ping.Data) // the next read fails as well
			p.mu.Unlock()
		}
		h, ok := f.(*http2.MetaHeadersFrame)
		if !ok {
			continue
		}
		var code, message string
		for _, f := range h.RegularFields() {
			switch f.Name {
			case "grpc-status":
				code = f.Value
			case "grpc-message":
				message = f.Value
			}
		}
		if code != "" {
			p.mu.Lock()
			p.statuses[code] = message
			p.mu.Unlock()
		}
	}
}

// call asks for a snapshot and returns the id of the stream.
func (p *rawPeer) call() (stream uint32) {
	p.t.Helper()
	return p.callWith(loadmonitorpb.SnapshotService_GetSnapshot_FullMethodName, true, []byte{0, 0, 0, 0, 0})
}

// callWith begins a call, sends data, and ends its half of the stream if end is true.
func (p *rawPeer) callWith(method string, end bool, data []byte) (stream uint32) {
	p.t.Helper()
	p.block.Reset()
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", method},
		{":authority", "m"}, {"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		if err := p.enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			p.t.Fatal(err)
		}
	}
	stream = 2*p.calls + 1
	p.calls++
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: p.block.Bytes(), EndHeaders: true}); err != nil {
		p.t.Fatal(err)
	}
	if err := p.framer.WriteData(stream, end, data); err != nil {
		p.t.Fatal(err)
	}
	return stream
}

// told returns the message of a call that ended with the code.
func (p *rawPeer) told(code string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.statuses[code]
}

// cancel resets a stream.
func (p *rawPeer) cancel(stream uint32) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.framer.WriteRSTStream(stream, http2.ErrCodeCancel); err != nil {
		p.t.Fatal(err)
	}
}

// account returns what is unread.
func (u *unread) account() (unreadBytes int64, conns int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bytes, len(u.conns)
}

// await waits until the condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(hangGuard); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

func (u *unread) awaitNothing(t *testing.T) {
	t.Helper()
	await(t, "the account is empty", func() bool {
		n, conns := u.account()
		if n < 0 {
			t.Fatalf("%d bytes are unread", n)
		}
		return n == 0 && conns == 0
	})
}

// Rule LIFE2: a peer that asks and does not read is refused beyond a few pages, others are served meanwhile, and nothing of
// it stays when it goes.
func TestUnread_APeerThatDoesNotReadIsBounded(t *testing.T) {
	const page, calls, pages = 1 << 20, 300, 20
	r := start(t, Options{Snapshot: &pager{newFakeWatch(), page, pages}})
	p := newRawPeer(t, r.GRPCAddr().String())
	for range calls {
		p.call()
	}
	taken := func() int64 { return calls - r.unread.refusedConnection.Load() }
	most := int64(maxUnreadPerConnection/page + runtime.GOMAXPROCS(0))
	await(t, "calls are refused", func() bool { return taken() <= most })
	if n, _ := r.unread.account(); n < maxUnreadPerConnection || n > most*(page+100) {
		t.Errorf("%d bytes are unread after %d calls, want %d to %d", n, calls, maxUnreadPerConnection, most*page)
	}
	for range 2 {
		if n, err := readAll(t.Context(), r.dial()); n != pages || err != nil {
			t.Errorf("another peer got %d pages: %v", n, err)
		}
	}
	_, metrics := r.do(http.MethodGet, "/metrics", nil)
	for _, want := range []string{
		`loadmonitor_unread_refused_total{bound="connection"} 2`, `loadmonitor_unread_refused_total{bound="server"} 0`,
		"loadmonitor_unread_response_bytes 1", "loadmonitor_unread_response_bytes_limit ",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s", want)
		}
	}
	if n := strings.Count(r.log.String(), "unread_connection"); n != 1 {
		t.Errorf("%d lines:\n%s", n, r.log)
	}
	p.close()
	r.unread.awaitNothing(t)
	if message := p.statuses["8"]; len(p.statuses) != 1 || !strings.Contains(message, "at most 12582912: read responses before") {
		t.Errorf("the peer was told %q", p.statuses)
	}
}

// newUnreadServer serves a snapshot with bounds of its own.
func newUnreadServer(t *testing.T, u *unread, page int) net.Addr {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.UnaryInterceptor(u.intercept), grpc.ForceServerCodecV2(newCodec(nil)), grpc.WaitForHandlers(true))
	loadmonitorpb.RegisterSnapshotServiceServer(g, &pager{newFakeWatch(), page, 8})
	var done sync.WaitGroup
	done.Go(func() {
		if err := g.Serve(&boundedListener{Listener: l, max: 1000, ended: u.ended}); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		g.Stop()
		done.Wait()
		u.awaitNothing(t)
	})
	return l.Addr()
}

func smallUnread(perConnection, total int64) *unread {
	u := newUnread(newEpisodes(slog.New(slog.DiscardHandler)))
	u.perConnection, u.total = perConnection, total
	return u
}

// Calls that are cancelled give back what they took, while the connection goes on.
func TestUnread_CancelledCallsGiveBack(t *testing.T) {
	t.Parallel()
	const page = 128 << 10
	u := smallUnread(4*page, 1<<40)
	p := newRawPeer(t, newUnreadServer(t, u, page).String())
	for round := range 5 {
		var streams []uint32
		for i := range int64(4) {
			streams = append(streams, p.call())
			await(t, "the response is charged", func() bool { n, _ := u.account(); return n > (i+1)*page })
		}
		for _, s := range streams {
			p.cancel(s)
		}
		u.awaitNothing(t)
		if n := u.refusedConnection.Load(); n != 0 {
			t.Fatalf("round %d: %d refused", round, n)
		}
	}
}

// A call that is cancelled while its response is on the way to gRPC's queue gives back at the latest when its memory is
// collected.
func TestUnread_CancelsThatMeetTheResponseGiveBack(t *testing.T) {
	t.Parallel()
	const page = 8 << 10
	u := smallUnread(1<<40, 1<<40)
	p := newRawPeer(t, newUnreadServer(t, u, page).String())
	for range 2000 {
		p.cancel(p.call())
	}
	await(t, "the account is empty", func() bool {
		runtime.GC()
		n, conns := u.account()
		return n == 0 && conns == 0
	})
}

// What nobody frees is given back when nothing holds the response any more, and only then.
func TestUnread_AResponseThatIsDroppedGivesBack(t *testing.T) {
	t.Parallel()
	const page = 64 << 10
	u := smallUnread(4*page, 8*page)
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}})
	info := &grpc.UnaryServerInfo{FullMethod: loadmonitorpb.SnapshotService_GetSnapshot_FullMethodName}
	p := &pager{pageSize: page, pages: 1}
	resp, err := u.intercept(ctx, &loadmonitorpb.GetSnapshotRequest{}, info, func(ctx context.Context, req any) (any, error) {
		return p.GetSnapshot(ctx, req.(*loadmonitorpb.GetSnapshotRequest))
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		runtime.GC()
	}
	if n, conns := u.account(); n < page || conns != 1 {
		t.Errorf("%d bytes of %d connections are unread while the response is held, want %d or more of 1", n, conns, page)
	}
	runtime.KeepAlive(resp)
	resp = nil
	await(t, "the response is given back", func() bool {
		runtime.GC()
		n, conns := u.account()
		return n == 0 && conns == 0
	})
}

// The bound of the whole server refuses whoever asks next, until those who do not read are gone.
func TestUnread_TheServerIsBounded(t *testing.T) {
	t.Parallel()
	const page = 128 << 10
	u := smallUnread(2*page, 6*page)
	addr := newUnreadServer(t, u, page).String()
	var stuck []*rawPeer
	for range 3 {
		p := newRawPeer(t, addr)
		p.call()
		p.call()
		stuck = append(stuck, p)
	}
	await(t, "six pages are charged", func() bool { n, _ := u.account(); return n > 6*page })
	cc := dialAddr(t, addr)
	_, err := readAll(t.Context(), cc)
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "on all connections, at most 786432: read responses before") {
		t.Errorf("beyond the bound: %v", err)
	}
	if n := u.refusedServer.Load(); n != 1 {
		t.Errorf("%d refused", n)
	}
	for _, p := range stuck {
		p.close()
	}
	u.awaitNothing(t)
	if n, err := readAll(t.Context(), cc); n != 8 || err != nil {
		t.Errorf("%d pages: %v", n, err)
	}
}

// Peers that read are never refused: many at a time, each with a call for each page of the bound.
func TestUnread_PeersThatReadAreNeverRefused(t *testing.T) {
	t.Parallel()
	const page = 64 << 10
	u := smallUnread(4*page, 1<<40)
	addr := newUnreadServer(t, u, page).String()
	var readers sync.WaitGroup
	for range 4 {
		cc := dialAddr(t, addr)
		for range 4 {
			readers.Go(func() {
				for range 3 {
					if n, err := readAll(t.Context(), cc); n != 8 || err != nil {
						t.Errorf("%d pages: %v", n, err)
						return
					}
				}
			})
		}
	}
	readers.Wait()
	u.awaitNothing(t)
}
