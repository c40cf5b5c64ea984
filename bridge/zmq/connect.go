package zmq

import (
	"fmt"
	"net/netip"

	"github.com/loadmonitor/loadmonitor/load"
)

// dial asks for an address at which the rank's publisher answers, after a while. One dial of a rank is under way at most;
// one that waits behind others because the connection was only silent is given up when the connection has gone.
func (o *owner) dial(r *rank, after instant) {
	if r.removed.Load() {
		return
	}
	if r.dial != nil && (r.conn != nil || r.dial.class != classSilent || !o.b.dialer.abandon(r.dial)) {
		return
	}
	r.asked = o.b.now()
	class := classFresh
	switch {
	case r.fails >= deadAfter:
		class = classDead
	case r.conn != nil:
		class = classSilent
	}
	r.dial = &dial{rank: r, class: class, due: r.asked + after}
	o.b.dialer.add(r.dial)
}

// dialled is the answer. An address means that a publisher greeted there just now.
func (o *owner) dialled(r *rank, addr netip.Addr, err error) {
	r.dial = nil
	if r.removed.Load() {
		return
	}
	if c := r.conn; c != nil && c.heard > r.asked {
		// It spoke again in the meantime.
		r.fails = 0
		o.lookBy(c, c.heard+o.patience(c))
		return
	}
	if err == nil {
		err = o.connect(r, addr)
	}
	if err != nil {
		o.failed(r, err.Error())
	}
}

// failed notes why there is no connection and dials again later. A connection that is still open stays: nothing says
// that it is dead.
func (o *owner) failed(r *rank, why string) {
	o.b.counts.dialFailures.Add(1)
	if r.fails < 255 {
		r.fails++
	}
	o.note(r, why)
	o.tellSilent(r.worker)
	o.dial(r, o.b.backoff(int(r.fails)))
}

// connect opens a socket to an address in place of the one that the rank has.
func (o *owner) connect(r *rank, addr netip.Addr) error {
	if r.conn != nil {
		o.drop(r.conn)
	}
	s, err := o.b.subscribe(&r.target, addr)
	if err != nil {
		return err
	}
	fd, err := s.GetFd()
	if err != nil {
		s.Close()
		return fmt.Errorf("socket descriptor: %w", err)
	}
	c := &conn{
		rank: r, socket: s, handle: handleOf(s), fd: fd, addr: addr, stream: load.NewStream(load.TransportZMQ), opened: o.b.now(), sequence: -1,
	}
	if o.b.options.Confirm == nil || r.target.Trusted {
		c.trust = trusted
	}
	o.place(c)
	if err := o.poller.add(fd, c.token); err != nil {
		o.vacate(c)
		s.Close()
		return fmt.Errorf("watch socket: %w", err)
	}
	r.conn, r.missed = c, false
	o.looks[r.index] = c.opened + o.patience(c)
	o.b.counts.connects.Add(1)
	o.b.counts.sockets.Add(1)
	if r.connects++; r.connects > 1 {
		o.b.counts.redials.Add(1)
	}
	// What happened before the socket was watched raises no edge.
	o.visit(c, c.opened)
	return nil
}

// drop closes a connection. The stream ends with it.
func (o *owner) drop(c *conn) {
	// Before the socket is closed: afterwards its descriptor belongs to libzmq's reaper.
	_ = o.poller.remove(c.fd)
	o.vacate(c)
	c.rank.conn = nil
	c.socket.Close()
	o.b.counts.sockets.Add(-1)
	o.b.options.Sink.Release(c.stream)
}

// place gives the connection a token of its own, so that edges of one that is closed are not taken for it.
func (o *owner) place(c *conn) {
	if len(o.vacant) == 0 {
		o.vacant = append(o.vacant, uint32(len(o.conns)))
		o.conns = append(o.conns, nil)
		o.ages = append(o.ages, 0)
	}
	i := o.vacant[len(o.vacant)-1]
	o.vacant = o.vacant[:len(o.vacant)-1]
	o.ages[i]++
	o.conns[i] = c
	c.token = uint64(o.ages[i]&0x7fffffff)<<32 | uint64(i)
}

func (o *owner) vacate(c *conn) {
	i := uint32(c.token)
	o.conns[i] = nil
	o.vacant = append(o.vacant, i)
}

// countLate counts what a connection that is about to be closed still has.
func (o *owner) countLate(c *conn) {
	if c.held != nil {
		o.b.counts.late.Add(1)
	}
	d, _ := drain(c.handle, c.rank.target.Topic, c.rank.target.TopicKnown, o.buffer)
	o.b.counts.messages.Add(uint64(d.messages))
	o.b.counts.late.Add(uint64(d.good))
}
