package zmq

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"time"
	"unsafe"

	zmq4 "github.com/pebbe/zmq4"
)

const (
	// receiveMark bounds the messages that libzmq holds for one socket: a few times what a rank that sends 10,000 a second
	// brings while the rate cap leaves it alone. A backlog in the kernel is read this many at a time, and each time takes a
	// switch between two threads, so fewer would mean reading old messages for longer.
	receiveMark = 256
	// receiveBuffer bounds what the kernel holds for one connection, so that a backlog is a few hundred messages old, not
	// thousands.
	receiveBuffer = 64 << 10
	// handshakeTimeout ends a connection whose peer accepts and then says nothing.
	handshakeTimeout = 5 * time.Second
	// heartbeatUnit times the square of the number of sockets is the least time between heartbeats.
	heartbeatUnit = 10 * time.Microsecond
	maxHeartbeat  = 10 * time.Minute
	// A host that does not acknowledge is given up by the kernel after a minute.
	keepaliveIdle     = 30 * time.Second
	keepaliveInterval = 10 * time.Second
	keepaliveCount    = 3
	// Sockets that were closed count until libzmq's reaper has had them.
	socketSlack = 1024
	// The bound that libzmq itself has.
	maxContextSockets = 65535
)

func newContext(sockets int) (*zmq4.Context, error) {
	c, err := zmq4.NewContext()
	if err != nil {
		return nil, fmt.Errorf("libzmq: %w", err)
	}
	if err := c.SetMaxSockets(min(sockets+socketSlack, maxContextSockets)); err != nil {
		return nil, errors.Join(fmt.Errorf("libzmq: max sockets: %w", err), c.Term())
	}
	return c, nil
}

// subscribe opens a socket and lets it connect to one address, once.
func (b *Bridge) subscribe(t *Target, addr netip.Addr) (*zmq4.Socket, error) {
	s, err := b.context.NewSocket(zmq4.SUB)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := b.configure(s, t, addr); err != nil {
		s.Close()
		return nil, err
	}
	if err := s.Connect("tcp://" + netip.AddrPortFrom(addr, uint16(t.Port)).String()); err != nil {
		s.Close()
		return nil, fmt.Errorf("connect: %w", err)
	}
	return s, nil
}

func (b *Bridge) configure(s *zmq4.Socket, t *Target, addr netip.Addr) error {
	if err := errors.Join(
		s.SetRcvhwm(receiveMark),
		s.SetRcvbuf(receiveBuffer),
		s.SetMaxmsgsize(MaxMessageBytes),
		s.SetLinger(0),
		// libzmq takes this for "never": it would come back to whoever has the port then.
		s.SetReconnectIvl(-1),
		s.SetConnectTimeout(b.options.DialTimeout),
		s.SetHandshakeIvl(handshakeTimeout),
		s.SetHeartbeatIvl(b.heartbeat(int(b.counts.targets.Load()))),
		s.SetHeartbeatTimeout(b.options.Heartbeat),
		s.SetTcpKeepalive(1),
		s.SetTcpKeepaliveIdle(int(keepaliveIdle/time.Second)),
		s.SetTcpKeepaliveIntvl(int(keepaliveInterval/time.Second)),
		s.SetTcpKeepaliveCnt(keepaliveCount),
		s.SetIpv6(addr.Is6()),
	); err != nil {
		return fmt.Errorf("socket options: %w", err)
	}
	if key := b.serverKey(t); key != "" {
		if err := errors.Join(s.SetCurveServerkey(key), s.SetCurvePublickey(b.keys.public), s.SetCurveSecretkey(b.keys.secret)); err != nil {
			return fmt.Errorf("CURVE keys: %w", err)
		}
	}
	topic := t.Topic
	if !t.TopicKnown {
		topic = "" // everything
	}
	if err := s.SetSubscribe(topic); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	return nil
}

// heartbeat returns how often libzmq asks a silent peer whether it is alive, with n sockets. libzmq walks through all
// timers of its thread to cancel one, which each answer does: with thousands of sockets that would cost more than all
// load messages. So the time between heartbeats grows with the square of the sockets, and costs a fraction of a percent of
// a CPU whatever their number. A host that is gone is noticed by the kernel's own keepalive, a peer that is frozen by its
// silence.
func (b *Bridge) heartbeat(n int) time.Duration {
	return min(max(b.options.Heartbeat, time.Duration(n)*time.Duration(n)*heartbeatUnit), max(b.options.Heartbeat, maxHeartbeat))
}

func (b *Bridge) serverKey(t *Target) string {
	if t.ServerKey != "" {
		return t.ServerKey
	}
	return b.options.Curve.ServerKey
}

// handleOf returns libzmq's own handle of a socket. The binding keeps it to itself, and its receive calls cost several
// crossings into C and two allocations a frame: more than all else that is done with a message.
func handleOf(s *zmq4.Socket) unsafe.Pointer {
	return reflect.ValueOf(s).Elem().FieldByName("soc").UnsafePointer()
}

// socketHandleFound reports whether handleOf knows the binding that is linked.
func socketHandleFound() error {
	f, ok := reflect.TypeFor[zmq4.Socket]().FieldByName("soc")
	if !ok || f.Type != reflect.TypeFor[unsafe.Pointer]() {
		return errors.New("this version of github.com/pebbe/zmq4 keeps the socket handle elsewhere: use v1.4.0")
	}
	return nil
}
