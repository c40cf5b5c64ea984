package zmq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// The greeting with which both sides of ZMTP 3 open a connection: a signature, a version, the name of the security
// mechanism filled up with zeros, whether one is the server of it, and zeros.
const (
	greetingBytes  = 64
	signedBytes    = 12 // signature and version
	greetingMajor  = 10
	mechanismAt    = 12
	mechanismBytes = 20
)

func greeting(mechanism string) []byte {
	g := make([]byte, greetingBytes)
	g[0], g[8], g[9], g[greetingMajor] = 0xff, 1, 0x7f, 3
	copy(g[mechanismAt:], mechanism)
	return g
}

// greet reports whether something that speaks ZMTP as we want to answers at an address: nil, or why not. The connection
// is closed again; libzmq makes its own.
func (b *Bridge) greet(ctx context.Context, t *Target, addr netip.Addr) error {
	where := netip.AddrPortFrom(addr, uint16(t.Port)).String()
	dialer := net.Dialer{Timeout: b.options.DialTimeout, KeepAlive: -1}
	c, err := dialer.DialContext(ctx, "tcp", where)
	if err != nil {
		return b.unreachable(where, err)
	}
	defer c.Close()
	if tcp, is := c.(*net.TCPConn); is {
		// No connection of ours lingers in the kernel when it is closed.
		_ = tcp.SetLinger(0)
	}
	mechanism := "NULL"
	if b.serverKey(t) != "" {
		mechanism = "CURVE"
	}
	defer context.AfterFunc(ctx, func() { c.Close() })()
	theirs, err := exchange(c, greeting(mechanism), b.options.DialTimeout)
	return judge(where, mechanism, theirs, err, b.options.DialTimeout)
}

// exchange sends a greeting and reads the other one, as far as it comes. libzmq tells all of its own as soon as it has
// seen signature and version, and ends the connection without a word if it then reads of a mechanism that it does not
// have; others tell nothing before they have seen all. So ours is sent in two parts, with time for an answer in between.
func exchange(c net.Conn, ours []byte, timeout time.Duration) (theirs []byte, err error) {
	const hesitate = 200 * time.Millisecond
	deadline := time.Now().Add(timeout)
	buffer := make([]byte, greetingBytes)
	_ = c.SetDeadline(time.Now().Add(min(hesitate, timeout/2)))
	if _, err := c.Write(ours[:signedBytes]); err != nil {
		return nil, err
	}
	n, err := io.ReadFull(c, buffer)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = c.SetDeadline(deadline)
		if _, err := c.Write(ours[signedBytes:]); err != nil {
			return buffer[:n], err
		}
		var more int
		more, err = io.ReadFull(c, buffer[n:])
		n += more
	}
	return buffer[:n], err
}

// judge reads a greeting as far as it came.
func judge(where, mechanism string, theirs []byte, err error, timeout time.Duration) error {
	signed := len(theirs) == 0 || theirs[0] == 0xff && (len(theirs) <= 9 || theirs[9]&1 == 1)
	switch {
	case !signed:
		return fmt.Errorf("%s does not speak ZMTP: something else than a load publisher listens there", where)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%s accepts connections and sends no ZMTP greeting in %v", where, timeout)
	case err != nil:
		return fmt.Errorf("%s ended the connection before its ZMTP greeting was complete", where)
	case theirs[greetingMajor] < 3:
		return fmt.Errorf("%s speaks ZMTP %d: want 3, which libzmq has had since 4.0", where, theirs[greetingMajor])
	}
	name, _, _ := bytes.Cut(theirs[mechanismAt:mechanismAt+mechanismBytes], []byte{0})
	switch {
	case string(name) == mechanism:
		return nil
	case string(name) == "CURVE":
		return fmt.Errorf("the publisher at %s wants CURVE: configure its server key", where)
	case mechanism == "CURVE":
		return fmt.Errorf("the publisher at %s does not use CURVE: remove its server key, or start it with one", where)
	}
	return fmt.Errorf("the publisher at %s wants another security mechanism than %s", where, mechanism)
}

func (b *Bridge) unreachable(where string, err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s refuses connections: no publisher listens there", where)
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return fmt.Errorf("%s cannot be dialled, too many open files: raise the limit (ulimit -n, LimitNOFILE)", where)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s does not answer in %v", where, b.options.DialTimeout)
	}
	return fmt.Errorf("%s cannot be dialled: %w", where, err)
}
