package zmq

import (
	"errors"
	"slices"

	"github.com/loadmonitor/loadmonitor/load"
)

// report is what is handed to the sink, used again and again.
type report struct {
	decoded Decoded
	rank    load.RankReport
}

// visit follows an edge. A rank that sends faster than the cap is read when its time has come: until then libzmq holds
// its messages, so nothing is lost that is not superseded anyway. Unless more piles up than libzmq holds: then older
// messages are in the way of newer ones, and everything is read as fast as it can be.
func (o *owner) visit(c *conn, now instant) {
	switch {
	case c.ready:
		c.edge = true
	case c.behind:
		o.drain(c, now, true)
	case c.capped:
		c.edge = true
	case c.decoded != 0 && now-c.decoded < o.b.options.RankInterval:
		c.edge = true
		o.capVisit(c, now)
	default:
		o.drain(c, now, true)
	}
}

// capVisit lets a connection be read once its time has come.
func (o *owner) capVisit(c *conn, now instant) {
	o.b.counts.rateCapped.Add(1)
	if len(o.capped) == 0 {
		o.flush = now + o.b.options.RankInterval
	}
	c.capped = true
	o.capped = append(o.capped, c)
}

func (o *owner) flushCapped(now instant) {
	due := o.capped
	o.capped = nil
	for _, c := range due {
		c.capped = false
		o.drain(c, now, false)
		if c.rank.conn == c && c.held != nil && c.trust == trusted && !c.capped {
			o.capVisit(c, now) // decoded a moment after this round began
		}
	}
	if o.capped == nil {
		clear(due)
		o.capped = due[:0]
	}
}

// drain reads one socket and hands on its newest message. edge says that an edge asks for it, as one may have before.
func (o *owner) drain(c *conn, now instant, edge bool) {
	if c.rank.conn != c {
		return // closed since it was queued
	}
	edge = edge || c.edge
	c.edge = false
	t := &c.rank.target
	d, err := drain(c.handle, t.Topic, t.TopicKnown, o.buffer)
	counts := &o.b.counts
	if d.messages > 0 {
		counts.messages.Add(uint64(d.messages))
		c.heard, c.hushed = now, 0
		if c.behind = d.messages >= drainLimit; c.behind {
			o.hurry = true
		}
	}
	if d.messages > d.good {
		o.rejectFrames(c, &d)
	}
	switch {
	case err != nil:
		o.lose(c, err.Error())
		return
	case d.good > 0:
		o.skip(c, d.good-1)
		o.take(c, d.payload, d.sequence, now)
	case c.held != nil && c.trust == trusted && now-c.decoded >= o.b.options.RankInterval:
		o.release(c, now)
	case edge && d.messages == 0 && (c.hushed == 0 || c.heard == 0):
		// Something happened to the connection, and it was no message.
		c.hushed = now
		o.lookBy(c, now+hushPatience)
	}
	if !d.empty && c.rank.conn == c && !c.ready {
		c.ready = true
		o.ready = append(o.ready, c)
	}
}

// take decides what becomes of the newest good message.
func (o *owner) take(c *conn, payload []byte, sequence int64, now instant) {
	if sequence < c.sequence {
		// Another life of the publisher behind one connection. It counts at once (rule SEQ2), and is asked about.
		o.b.counts.restarts.Add(1)
		o.ask(c)
	}
	c.sequence = sequence
	if c.trust == trusted && now-c.decoded >= o.b.options.RankInterval {
		if c.held != nil {
			c.held = nil
			o.skip(c, 1)
		}
		o.hand(c, payload, sequence, now)
		return
	}
	switch {
	case c.held == nil:
		c.held = &held{}
	case c.trust == trusted:
		o.skip(c, 1)
	default:
		o.distrust(c)
	}
	c.held.payload = append(c.held.payload[:0], payload...)
	c.held.sequence, c.held.received = sequence, now
	switch {
	case c.trust == untrusted && now >= c.retry:
		o.ask(c)
	case c.trust == trusted && !c.capped:
		o.capVisit(c, now)
	}
}

// skip counts good messages that a newer one took the place of.
func (o *owner) skip(c *conn, n int) {
	c.skipped += uint64(n)
	o.b.counts.conflated.Add(uint64(n))
}

// distrust counts a good message that is dropped because it is not known who sent it.
func (o *owner) distrust(c *conn) {
	c.skipped++
	o.b.counts.unconfirmed.Add(1)
}

// release hands on the message that was held.
func (o *owner) release(c *conn, now instant) {
	h := c.held
	c.held = nil
	o.hand(c, h.payload, h.sequence, now)
}

// hand decodes a message and gives it to the sink.
func (o *owner) hand(c *conn, payload []byte, sequence int64, now instant) {
	r, counts := c.rank, &o.b.counts
	if r.removed.Load() {
		counts.late.Add(1)
		return
	}
	c.decoded = now
	in := &o.report.decoded
	if err := o.decoder.Payload(payload, in); err != nil {
		counts.rejected[ReasonPayload].Add(1)
		c.skipped++
		o.malformed(c, "load messages are malformed: "+err.Error())
		return
	}
	counts.decoded.Add(1)
	if in.HasToldRank && in.ToldRank != int64(r.target.Rank) {
		counts.otherRank.Add(1)
	}
	if in.RepeatedKeys > 0 {
		counts.repeatedKeys.Add(uint64(in.RepeatedKeys))
	}
	in.Load.DPRank = r.target.Rank
	o.report.rank = load.RankReport{
		WorkerID: r.target.WorkerID, Sequence: sequence, Load: in.Load, Conflated: c.skipped, CapacityOptional: in.CapacityOptional,
	}
	c.skipped = 0
	switch err := o.b.options.Sink.ApplyRank(c.stream, &o.report.rank); {
	case err == nil:
		c.good = now
		if r.fails = 0; r.silences != 0 {
			r.silences = 0
			o.lookBy(c, now+o.patience(c))
		}
		o.settle(r)
	case endsStream(err) || c.stream.Err() != nil:
		counts.refused.Add(1)
		o.lose(c, err.Error())
	default:
		counts.refused.Add(1)
		if c.skipped = o.report.rank.Conflated; !errors.Is(err, load.ErrSequenceOld) {
			c.skipped++ // it arrived; a message that came before is in no gap
		}
	}
}

// endsStream tells an error that says who, after which a stream must end, from one that says what.
func endsStream(err error) bool {
	return slices.ContainsFunc([]error{
		load.ErrUnknownWorker, load.ErrOriginConflict, load.ErrWrongTransport, load.ErrWorkerRemoved, load.ErrStreamSuperseded,
		load.ErrSourceSuperseded, load.ErrNotReady, load.ErrShuttingDown,
	}, func(target error) bool { return errors.Is(err, target) })
}

func (o *owner) rejectFrames(c *conn, d *drained) {
	for reason, n := range d.rejected {
		if n > 0 {
			o.b.counts.rejected[reason].Add(uint64(n))
		}
	}
	if d.good > 0 {
		return
	}
	switch {
	case d.rejected[ReasonTopic] > 0 && c.rank.target.TopicKnown:
		o.malformed(c, "only messages of other topics arrive: something else publishes at this port, or the engine changed its load topic")
	case d.rejected[ReasonTopic] > 0:
		o.malformed(c, `only messages of other topics than "load" arrive: something else publishes at this port`)
	case d.rejected[ReasonFrameCount] > 0:
		o.malformed(c, "messages without the three frames of a load message arrive: something else publishes at this port")
	default:
		o.malformed(c, "messages without a valid sequence frame arrive: something else publishes at this port")
	}
}

// malformed notes what is wrong with the messages, unless good ones come in between.
func (o *owner) malformed(c *conn, why string) {
	if c.good == 0 || c.heard-c.good > o.b.options.Silence/2 {
		o.note(c.rank, why)
	}
}
