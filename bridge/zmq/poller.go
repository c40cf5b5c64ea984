package zmq

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// poller waits for edges on many descriptors at a cost that follows the edges, not the descriptors. Waiting takes a thread
// of the process. The runtime's own poller would take none, but each of its wake-ups passes the scheduler and its monitor
// thread, which costs as much as several messages; a short wait in a system call passes neither.
type poller struct {
	fd     int
	signal int // an eventfd
	woken  atomic.Bool
	events [256]unix.EpollEvent // used only by the goroutine that waits
}

// signalToken marks the eventfd among the descriptors' own tokens.
const signalToken = ^uint64(0)

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	signal, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	p := &poller{fd: fd, signal: signal}
	if err := p.add(signal, signalToken); err != nil {
		p.close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return p, nil
}

func (p *poller) close() {
	unix.Close(p.signal)
	unix.Close(p.fd)
}

// add watches a descriptor. The token comes back with each edge.
func (p *poller) add(fd int, token uint64) error {
	e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(token), Pad: int32(token >> 32)}
	return unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &e)
}

// remove ends watching. Edges that were already taken still come up.
func (p *poller) remove(fd int) error { return unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil) }

// wake lets wait return soon. Any goroutine may call it, before close.
func (p *poller) wake() {
	if p.woken.CompareAndSwap(false, true) {
		one := [8]byte{1}
		_, _ = unix.Write(p.signal, one[:])
	}
}

// wait sleeps for a pause, whatever comes, and then until there are edges or the timeout has passed: then there are none.
// The result is valid until the next call.
func (p *poller) wait(pause, timeout time.Duration) ([]unix.EpollEvent, error) {
	if pause > 0 {
		// Not time.Sleep: see above. A signal may cut it short.
		t := unix.NsecToTimespec(int64(pause))
		_ = unix.Nanosleep(&t, nil)
	}
	n, err := unix.EpollWait(p.fd, p.events[:], int((max(timeout, 0)+time.Millisecond-1)/time.Millisecond))
	if errors.Is(err, unix.EINTR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return p.events[:n], nil
}

// token returns what add was given. The signal is taken: a caller that looks for work after this misses nothing, because
// whoever finds woken still set has posted its work before.
func (p *poller) token(e *unix.EpollEvent) uint64 {
	t := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
	if t == signalToken {
		var n [8]byte
		_, _ = unix.Read(p.signal, n[:])
		p.woken.Store(false)
	}
	return t
}
