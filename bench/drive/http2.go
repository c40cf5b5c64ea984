package drive

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

// watchConn is an HTTP/2 connection with one gRPC call on it, which receives a stream of messages.
type watchConn struct {
	framer *http2.Framer

	messages uint64 // whose head has arrived
	bytes    uint64 // of messages, without their heads
	over     bool   // the call has ended

	unacked int // data since the last window update
	missing int // bytes of the message that is being received
	head    []byte
}

const (
	watchWindow = 1 << 20 // of stream and connection, as in the client SDK
	messageHead = 5       // of a gRPC message: compressed or not, and its length
	callID      = 1
)

// openWatch sends everything that a client sends before it receives.
func openWatch(conn net.Conn, target string) (*watchConn, error) {
	h := &watchConn{framer: http2.NewFramer(conn, bufio.NewReaderSize(conn, 32<<10))}
	h.framer.SetReuseFrames()
	var headers bytes.Buffer
	enc := hpack.NewEncoder(&headers)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", loadmonitorpb.SnapshotService_Watch_FullMethodName}, {":authority", target},
		{"content-type", "application/grpc"}, {"user-agent", "loadmonitor-bench"}, {"te", "trailers"},
	} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return nil, err
		}
	}
	req := &loadmonitorpb.WatchRequest{}
	req.SetRanks(true)
	body, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	message := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))
	message = append(message, body...)

	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return nil, err
	}
	for _, write := range []func() error{
		func() error {
			return h.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: watchWindow})
		},
		func() error { return h.framer.WriteWindowUpdate(0, watchWindow-65535) }, // the initial one is fixed
		func() error {
			return h.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: callID, BlockFragment: headers.Bytes(), EndHeaders: true})
		},
		func() error { return h.framer.WriteData(callID, true, message) },
	} {
		if err := write(); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// next reads one frame, answers it, and returns how much data of the call it held.
func (h *watchConn) next() (data int, err error) {
	frame, err := h.framer.ReadFrame()
	if err != nil {
		return 0, err
	}
	switch f := frame.(type) {
	case *http2.DataFrame:
		h.over = h.over || f.StreamEnded()
		return len(f.Data()), h.take(f.Data())
	case *http2.HeadersFrame:
		h.over = h.over || f.StreamEnded()
	case *http2.RSTStreamFrame:
		return 0, fmt.Errorf("the monitor reset it: %v", f.ErrCode)
	case *http2.GoAwayFrame:
		return 0, fmt.Errorf("the monitor said goodbye: %v %s", f.ErrCode, f.DebugData())
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return 0, h.framer.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return 0, h.framer.WritePing(true, f.Data)
		}
	}
	return 0, nil
}

// take counts the messages in the data, and opens the windows again as grpc-go does: once a quarter is used up.
func (h *watchConn) take(data []byte) error {
	h.unacked += len(data)
	for len(data) > 0 {
		if h.missing == 0 {
			n := min(messageHead-len(h.head), len(data))
			h.head, data = append(h.head, data[:n]...), data[n:]
			if len(h.head) < messageHead {
				break
			}
			h.missing = int(binary.BigEndian.Uint32(h.head[1:]))
			h.head = h.head[:0]
			h.messages++
			continue
		}
		n := min(h.missing, len(data))
		h.missing, data = h.missing-n, data[n:]
		h.bytes += uint64(n)
	}
	if h.unacked < watchWindow/4 {
		return nil
	}
	n := uint32(h.unacked)
	h.unacked = 0
	if err := h.framer.WriteWindowUpdate(0, n); err != nil {
		return err
	}
	return h.framer.WriteWindowUpdate(callID, n)
}
