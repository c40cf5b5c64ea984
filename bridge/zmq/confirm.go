package zmq

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

const (
	confirmRetry    = 500 * time.Millisecond
	confirmRetryMax = 5 * time.Second
	// maxHeld is how old a message may be that waited for its engine to be confirmed: it is handed on as if it came now.
	maxHeld = 250 * time.Millisecond
	// After so many refusals in a row the connection is given up as well: the name may point elsewhere by now.
	maxRefusals = 3
)

// ask wants to know who is behind a connection. Questions about one worker are put one after the other, and an answer
// speaks only for connections that were there when its question was put.
func (o *owner) ask(c *conn) {
	if o.b.options.Confirm == nil || c.rank.target.Trusted {
		return
	}
	if c.trust == untrusted {
		c.trust = asking
	}
	w := c.rank.worker
	if !slices.Contains(w.waiting, c) {
		w.waiting = append(w.waiting, c)
	}
	if w.probing == nil {
		o.confirm(w)
	}
}

// confirm puts one question, in a goroutine of its own.
func (o *owner) confirm(w *worker) {
	w.probing, w.waiting = w.waiting, nil
	hosts := make(map[string][]netip.Addr)
	for _, c := range w.probing {
		if _, is := literal(c.rank.target.Host); !is {
			hosts[c.rank.target.Host] = nil
		}
	}
	o.b.counts.confirms.Add(1)
	o.b.running.Go(func() {
		ctx, cancel := context.WithTimeout(o.b.ctx, ConfirmTimeout)
		defer cancel()
		err := o.b.options.Confirm(ctx, w.id)
		if err == nil {
			// The answer came from where the name points to now; the connection was made before.
			for host := range hosts {
				if hosts[host], err = o.b.resolve(ctx, host); err != nil {
					break
				}
			}
		}
		o.post(func() { o.confirmed(w, hosts, err) })
	})
}

func (o *owner) confirmed(w *worker, hosts map[string][]netip.Addr, err error) {
	now := o.b.now()
	if err != nil {
		o.b.counts.confirmFailed.Add(1)
	}
	probed := w.probing
	w.probing = nil
	for _, c := range probed {
		if c.rank.conn != c {
			continue
		}
		addrs, named := hosts[c.rank.target.Host]
		switch {
		case err != nil:
			o.unconfirmed(c, err, now)
		case named && !slices.Contains(addrs, c.addr):
			o.moved(c)
		default:
			c.trust, c.refusals, c.retry = trusted, 0, 0
			switch {
			case c.held == nil:
			case now-c.held.received <= maxHeld:
				o.release(c, now)
			default:
				c.held = nil
				o.distrust(c)
			}
		}
	}
	if len(w.waiting) > 0 && w.ranks > 0 {
		o.confirm(w)
	}
	o.forget(w)
}

func (o *owner) unconfirmed(c *conn, err error, now instant) {
	why := fmt.Sprintf("it is not confirmed which engine is at %s: %v", c.where(), err)
	if c.refusals++; c.refusals >= maxRefusals {
		o.lose(c, why)
		return
	}
	c.trust = untrusted
	c.retry = now + min(confirmRetry<<(c.refusals-1), confirmRetryMax)
	o.lookBy(c, c.retry)
	o.note(c.rank, why)
}
