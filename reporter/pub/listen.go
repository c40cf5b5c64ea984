package pub

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Ranges of any free ports are looked for from lowPort on, beginning at a random place before startBefore, so that
// processes that start together seldom meet. That is below the ports which kernels give to outgoing connections: these
// would take a port of a range while its engine restarts.
const (
	lowPort     = 15_000
	startBefore = 28_000
)

func randomPort() int { return lowPort + rand.IntN(startBefore-lowPort) }

// listenHost returns the host as package net wants it.
func listenHost(host string) (string, error) {
	if host == "*" {
		return "", nil
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	if err != nil {
		return "", fmt.Errorf("pub: host %q cannot be bound: want *, [::] or an IP address of this machine: %w", host, ErrInvalid)
	}
	return ip.String(), nil
}

// listenRange opens every port of a range or none.
func listenRange(r Range) ([]*net.TCPListener, error) {
	host, err := listenHost(r.Host)
	if err != nil {
		return nil, err
	}
	var open []*net.TCPListener
	for rank := range r.Ranks {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(r.Base+rank)))
		if err != nil {
			closeAll(open)
			return nil, &portError{port: r.Base + rank, rank: rank, err: err}
		}
		open = append(open, l.(*net.TCPListener))
	}
	return open, nil
}

// listenAnywhere opens as many consecutive free ports as there are ranks, from a place on, and returns the first of them.
func listenAnywhere(r Range, from int) ([]*net.TCPListener, int, error) {
	wrapped := false
	for r.Base = from; ; {
		if r.last() > maxPort {
			if wrapped {
				return nil, 0, fmt.Errorf("pub: no %d consecutive ports of %s are free: end what takes them, or publish fewer ranks", r.Ranks, r.Host)
			}
			r.Base, wrapped = lowPort, true
		}
		open, err := listenRange(r)
		var taken *portError
		switch {
		case err == nil:
			return open, r.Base, nil
		case errors.As(err, &taken) && errors.Is(err, syscall.EADDRINUSE):
			r.Base = taken.port + 1
		default:
			return nil, 0, err
		}
	}
}

// portError says which port of a range cannot be had.
type portError struct {
	port, rank int
	err        error
}

func (e *portError) Error() string {
	return fmt.Sprintf("pub: rank %d: %v: free port %d or choose another range", e.rank, e.err, e.port)
}

func (e *portError) Unwrap() error { return e.err }

func closeAll(open []*net.TCPListener) {
	for _, l := range open {
		l.Close()
	}
}

// detach returns a descriptor of the listener's socket that is its own: closing the listener leaves it open.
func detach(l *net.TCPListener) (int, error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return 0, err
	}
	var fd int
	var dupErr error
	err = raw.Control(func(own uintptr) {
		// As package net does: no process may be forked between the two calls.
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		if fd, dupErr = syscall.Dup(int(own)); dupErr == nil {
			syscall.CloseOnExec(fd)
		}
	})
	return fd, errors.Join(err, dupErr)
}

// releaseWithin bounds how long libzmq may take to close a listening socket; it takes about a millisecond.
const releaseWithin = 5 * time.Second

// awaitRelease returns once every port of the range can be had again.
func awaitRelease(r Range) error {
	deadline := time.Now().Add(releaseWithin)
	for {
		open, err := listenRange(r)
		if err == nil {
			closeAll(open)
			return nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after closing: %w", err)
		}
		time.Sleep(time.Millisecond)
	}
}
