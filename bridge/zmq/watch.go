package zmq

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

const (
	// firstPatience is how long a new connection may bring nothing: an idle engine speaks once a second.
	firstPatience = 3 * time.Second
	// hushPatience is how long after an edge without a message the next message may take, before the connection counts as
	// ended: a little more than an idle engine's second.
	hushPatience = 1250 * time.Millisecond
	// longestLook is the longest time for which a rank is not looked at. The end of a stream that brings nothing is seen then.
	longestLook = 15 * time.Second
	// maxPatience bounds how long silence is waited out when earlier connections were silent too.
	maxPatience = time.Minute
	// silentEvery is how often Options.Silent is told of one worker.
	silentEvery = 3 * time.Second
	// logEvery is how often the trouble of one worker is logged.
	logEvery = time.Minute
)

// sweep sees to what no edge tells. libzmq has monitor sockets for the end of a connection; they would take a third
// descriptor and an inproc pair for every rank. Instead three cheap signs are read together: an edge without a message
// (which the end of a connection is), silence, and libzmq's own heartbeat, which turns a peer that is gone without a word
// into such an edge. Of a rank that needs nothing only its entry in looks is read.
func (o *owner) sweep(now instant) {
	for i, at := range o.looks {
		if now < at {
			continue
		}
		o.looks[i] = now + longestLook
		if c := o.ranks[i].conn; c != nil {
			o.check(c, now)
		}
	}
}

// lookBy lets the rank of a connection be seen to at a time, or before.
func (o *owner) lookBy(c *conn, at instant) {
	i := c.rank.index
	o.looks[i] = min(o.looks[i], at)
}

func (o *owner) check(c *conn, now instant) {
	r := c.rank
	silent := max(c.heard, c.opened) + o.patience(c)
	switch {
	case c.stream.Err() != nil:
		o.lose(c, c.stream.Err().Error())
		return
	case c.ended(now):
		o.b.counts.losses.Add(1)
		o.lose(c, fmt.Sprintf("the publisher at %s ended the connection", c.where()))
		return
	case now >= silent && r.dial == nil:
		o.silent(c, now)
	case c.trust == untrusted && c.retry != 0 && now >= c.retry:
		o.ask(c)
	}
	if now < silent {
		o.lookBy(c, silent)
	}
	if c.hushed != 0 && now < c.hushed+hushPatience {
		o.lookBy(c, c.hushed+hushPatience)
	}
	if now < c.retry {
		o.lookBy(c, c.retry)
	}
}

// ended tells from an edge after which no message came that a connection is over. A handshake makes edges as well, until
// libzmq gives it up: what comes later to a connection that never brought a message is its end.
func (c *conn) ended(now instant) bool {
	if c.hushed == 0 || now < c.hushed+hushPatience {
		return false
	}
	const early = 100 * time.Millisecond // that timers may be
	return c.heard != 0 || c.hushed >= c.opened+handshakeTimeout-early
}

// patience doubles with every connection in a row that stayed silent: a publisher that has nothing to say is not dialled
// every few seconds, and libzmq's heartbeat still notices when it is gone.
func (o *owner) patience(c *conn) time.Duration {
	p := o.b.options.Silence
	if c.heard == 0 {
		p = min(p, firstPatience)
	}
	return min(p<<min(c.rank.silences, 8), max(maxPatience, p))
}

// silent notes that a connection brings nothing and asks for another one, keeping this one until that answers.
func (o *owner) silent(c *conn, now instant) {
	o.b.counts.silences.Add(1)
	r := c.rank
	if r.silences < 255 {
		r.silences++
	}
	age := (now - max(c.heard, c.opened)).Round(time.Second)
	if c.heard == 0 {
		o.note(r, fmt.Sprintf("connected to %s, but no load message in %v: the engine publishes none, or what it sends breaks the protocol", c.where(), age))
	} else {
		o.note(r, fmt.Sprintf("no load message from %s for %v", c.where(), age))
	}
	o.tellSilent(r.worker)
	o.dial(r, 0)
}

// lose closes a connection that is of no use any more and dials again.
func (o *owner) lose(c *conn, why string) {
	r := c.rank
	o.drop(c)
	if r.fails < 255 {
		r.fails++
	}
	o.note(r, why)
	o.tellSilent(r.worker)
	o.dial(r, o.b.backoff(int(r.fails)))
}

// resolved hears what a name stands for now. A connection to an address that is no longer among them is given up; once
// more it is looked up first, because some servers answer with a part of many addresses.
func (o *owner) resolved(host string, addrs []netip.Addr) {
	again := false
	for _, r := range o.ranks {
		if r.conn == nil || r.target.Host != host {
			continue
		}
		switch {
		case slices.Contains(addrs, r.conn.addr):
			r.missed = false
		case r.missed:
			o.moved(r.conn)
		default:
			r.missed, again = true, true
		}
	}
	if again {
		o.b.dialer.lookAgain(host)
	}
}

func (o *owner) moved(c *conn) {
	o.b.counts.moves.Add(1)
	r := c.rank
	where := c.where()
	o.drop(c)
	o.note(r, fmt.Sprintf("%s moved away from %s", r.target.Host, where))
	r.fails = 0
	o.dial(r, 0)
}

func (c *conn) where() string {
	return netip.AddrPortFrom(c.addr, uint16(c.rank.target.Port)).String()
}

// note lets the sink show why a rank has no data. The log has one line for the first rank of a worker and one when all
// are well again.
func (o *owner) note(r *rank, why string) {
	if r.removed.Load() {
		return
	}
	o.b.options.Sink.SetRankNote(r.target.WorkerID, r.target.Rank, why)
	r.noted = true
	if r.trouble {
		return
	}
	r.trouble = true
	w := r.worker
	if w.trouble++; w.trouble > 1 || w.told {
		return
	}
	if now := o.b.now(); w.logged == 0 || now-w.logged >= logEvery {
		w.logged, w.told = now, true
		o.b.log.Warn("no load from a rank", "worker", w.id, "rank", r.target.Rank, "reason", why)
	}
}

// settle takes the note back.
func (o *owner) settle(r *rank) {
	if r.noted {
		r.noted = false
		o.b.options.Sink.SetRankNote(r.target.WorkerID, r.target.Rank, "")
	}
	o.endTrouble(r)
}

func (o *owner) endTrouble(r *rank) {
	if !r.trouble {
		return
	}
	r.trouble = false
	w := r.worker
	if w.trouble--; w.trouble == 0 && w.told {
		w.told = false
		o.b.log.Info("load from all ranks again", "worker", w.id)
	}
}

func (o *owner) tellSilent(w *worker) {
	if o.b.options.Silent == nil {
		return
	}
	if now := o.b.now(); w.silent == 0 || now-w.silent >= silentEvery {
		w.silent = now
		o.b.options.Silent(w.id)
	}
}
