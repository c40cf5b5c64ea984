package zmq

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// rawPublisher speaks ZMTP by hand, as far as a test wants it to.
type rawPublisher struct {
	listener net.Listener
	endpoint string

	mu sync.Mutex
}

// serveRaw starts a publisher on a free port. It lets each connection shake hands and hands it to serve, which owns it
// until it returns. With handshake false serve gets the connection as it was accepted.
func serveRaw(t testing.TB, handshake bool, serve func(c net.Conn)) *rawPublisher {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &rawPublisher{listener: l, endpoint: "tcp://" + l.Addr().String()}
	var running sync.WaitGroup
	open := make(map[net.Conn]bool)
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			open[c] = true
			p.mu.Unlock()
			running.Go(func() {
				defer func() {
					c.Close()
					p.mu.Lock()
					delete(open, c)
					p.mu.Unlock()
				}()
				if handshake && shakeHands(c) != nil {
					return
				}
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		for c := range open {
			c.Close()
		}
		p.mu.Unlock()
		running.Wait()
	})
	return p
}

// shakeHands plays a publisher's part of ZMTP 3.0 with the NULL mechanism, up to and with the first subscription.
func shakeHands(c net.Conn) error {
	_ = c.SetReadDeadline(time.Now().Add(testPatience))
	if _, err := c.Write(greeting("NULL")); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, greetingBytes)); err != nil {
		return err
	}
	if err := readFrame(c); err != nil { // READY
		return err
	}
	ready := append([]byte("\x05READY\x0bSocket-Type"), 0, 0, 0, 3)
	if _, err := c.Write(frame(frameCommand, append(ready, "PUB"...))); err != nil {
		return err
	}
	return readFrame(c) // the subscription
}

// Flags of a frame.
const (
	frameMore    = 1
	frameLong    = 2
	frameCommand = 4
)

func frame(flags byte, body []byte) []byte {
	return append([]byte{flags, byte(len(body))}, body...)
}

// longHeader announces a frame of any size.
func longHeader(flags byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | frameLong}, size)
}

// message is a whole load message.
func message(topic string, sequence int64, payload []byte) []byte {
	b := frame(frameMore, []byte(topic))
	b = append(b, frame(frameMore, binary.BigEndian.AppendUint64(nil, uint64(sequence)))...)
	return append(b, frame(0, payload)...)
}

func readFrame(c net.Conn) error {
	var head [2]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, head[1]))
	return err
}
