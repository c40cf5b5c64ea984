package zmq

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

const (
	resolveTimeout = 5 * time.Second
	// A name in use is looked up again this often, or as often as the pace for all names allows.
	refreshEvery = 5 * time.Second
	refreshPace  = 20 // names per second
	// refreshTick is how often it is seen which names are due.
	refreshTick = 500 * time.Millisecond
	// lookAgainAfter is when a surprising answer is asked for again.
	lookAgainAfter = time.Second
)

// name is a host that is not an address, as long as a target has it. Guarded by dialer.mu.
type name struct {
	host    string
	targets int
	waiting []*dial // for the look-up that is under way or queued
	pending bool    // one is
	failed  bool    // the last one did
	next    instant // when to look again without being asked
}

// hold says that one more target has this host.
func (d *dialer) hold(host string) {
	if _, is := literal(host); is {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.names[host]
	if n == nil {
		n = &name{host: host, next: d.b.now() + refreshEvery}
		d.names[host] = n
	}
	n.targets++
}

// drop takes hold back.
func (d *dialer) drop(host string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.names[host]; n != nil {
		if n.targets--; n.targets == 0 {
			delete(d.names, host)
		}
	}
}

// lookAgain lets a name be looked up soon.
func (d *dialer) lookAgain(host string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.names[host]; n != nil {
		n.next = min(n.next, d.b.now()+lookAgainAfter)
	}
}

// joinLocked lets a dial wait for its host to be looked up.
func (d *dialer) joinLocked(want *dial) {
	n := d.names[want.rank.target.Host]
	if n == nil {
		return // removed in the meantime
	}
	n.waiting = append(n.waiting, want)
	d.enqueueLocked(n)
}

func (d *dialer) enqueueLocked(n *name) {
	if n.pending {
		return
	}
	n.pending = true
	class := 0
	if n.failed {
		class = 1
	}
	d.queue[class] = append(d.queue[class], n)
}

// refreshLocked queues the names whose time has come and returns when to look again; 0: there are no names.
func (d *dialer) refreshLocked(now instant) time.Duration {
	if len(d.names) == 0 {
		return 0
	}
	if now < d.refreshAt {
		return d.refreshAt - now
	}
	d.refreshAt = now + refreshTick
	left := int(refreshPace * refreshTick / time.Second)
	for _, n := range d.names {
		if now >= n.next && !n.pending {
			n.next = now + d.refreshPeriodLocked()
			d.enqueueLocked(n)
			if left--; left == 0 {
				break
			}
		}
	}
	return refreshTick
}

func (d *dialer) refreshPeriodLocked() time.Duration {
	return max(refreshEvery, time.Duration(len(d.names))*time.Second/refreshPace)
}

// lookUpName resolves one name for all dials that wait for it.
func (d *dialer) lookUpName(ctx context.Context, n *name, class int) {
	addrs, err := d.b.resolve(ctx, n.host)

	d.mu.Lock()
	d.lookUp[class]++
	waiting := n.waiting
	n.waiting, n.pending, n.failed = nil, false, err != nil
	n.next = max(n.next, d.b.now()+d.refreshPeriodLocked())
	if err == nil {
		for _, want := range waiting {
			want.addrs = addrs
			d.ready[want.class] = append(d.ready[want.class], want)
		}
	}
	d.mu.Unlock()
	d.look()

	if err != nil {
		for _, want := range waiting {
			d.answer(want, netip.Addr{}, err)
		}
		return
	}
	for _, o := range d.b.owners {
		o.post(func() { o.resolved(n.host, addrs) })
	}
}

// resolve looks a name up. The addresses of the result are IPv4 where they can be.
func (b *Bridge) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	b.counts.resolves.Add(1)
	addrs, err := b.options.Resolve(ctx, host)
	if err == nil && len(addrs) == 0 {
		err = errors.New("it has no address")
	}
	if err != nil {
		b.counts.resolveFailed.Add(1)
		return nil, fmt.Errorf("name %q does not resolve: %w", host, err)
	}
	plain := make([]netip.Addr, len(addrs))
	for i, a := range addrs {
		plain[i] = a.Unmap()
	}
	return plain, nil
}
