package zmq

import (
	"sync/atomic"

	"github.com/loadmonitor/loadmonitor/load"
)

// counts only rise, except for the gauges at the end.
type counts struct {
	messages      atomic.Uint64
	decoded       atomic.Uint64
	rejected      [numReasons]atomic.Uint64
	refused       atomic.Uint64
	conflated     atomic.Uint64
	rateCapped    atomic.Uint64
	unconfirmed   atomic.Uint64
	late          atomic.Uint64
	otherRank     atomic.Uint64
	repeatedKeys  atomic.Uint64
	restarts      atomic.Uint64
	connects      atomic.Uint64
	redials       atomic.Uint64
	dialFailures  atomic.Uint64
	resolves      atomic.Uint64
	resolveFailed atomic.Uint64
	confirms      atomic.Uint64
	confirmFailed atomic.Uint64
	silences      atomic.Uint64
	losses        atomic.Uint64
	moves         atomic.Uint64

	sockets atomic.Int64 // open now
	targets atomic.Int64
	starved atomic.Int64 // targets without a socket for want of descriptors
}

// Metrics returns the figures of this room. Values are read when they are collected.
func (b *Bridge) Metrics() []load.Metric {
	c := &b.counts
	counter := func(name, help string, n *atomic.Uint64) load.Metric {
		return load.Metric{Name: name, Help: help, Counter: true, Collect: func(yield func(float64, ...load.Label)) {
			yield(float64(n.Load()))
		}}
	}
	gauge := func(name, help string, n *atomic.Int64) load.Metric {
		return load.Metric{Name: name, Help: help, Collect: func(yield func(float64, ...load.Label)) { yield(float64(n.Load())) }}
	}
	return []load.Metric{
		gauge("zmq_targets", "Ranks to subscribe to.", &c.targets),
		gauge("zmq_sockets", "Sockets that are open.", &c.sockets),
		gauge("zmq_ranks_without_socket", "Ranks that got no socket because the process may not open more files.", &c.starved),
		counter("zmq_messages_total", "Messages received, good or not.", &c.messages),
		counter("zmq_messages_decoded_total", "Messages decoded and handed on.", &c.decoded),
		{
			Name: "zmq_messages_rejected_total", Help: "Messages dropped because they are no load message, by reason.", Counter: true,
			Collect: func(yield func(float64, ...load.Label)) {
				for r := range numReasons {
					yield(float64(c.rejected[r].Load()), load.Label{Name: "reason", Value: r.String()})
				}
			},
		},
		counter("zmq_messages_refused_total", "Messages that were decoded and then refused by the aggregator.", &c.refused),
		counter("zmq_messages_conflated_total", "Good messages skipped because a newer one was there.", &c.conflated),
		counter("zmq_messages_rate_capped_total", "Times a rank was read later because it sends faster than the cap.", &c.rateCapped),
		counter("zmq_messages_unconfirmed_total", "Good messages dropped because the engine behind the address was not confirmed yet.", &c.unconfirmed),
		counter("zmq_messages_late_total", "Messages dropped because their rank is no longer a target.", &c.late),
		counter("zmq_messages_other_rank_total", "Messages that claim another rank than the one that was dialled.", &c.otherRank),
		counter("zmq_repeated_keys_total", "Keys that came twice in one message.", &c.repeatedKeys),
		counter("zmq_publisher_restarts_total", "Sequences that went backwards on one connection.", &c.restarts),
		counter("zmq_connects_total", "Connections begun.", &c.connects),
		counter("zmq_redials_total", "Connections begun for a rank that had one before.", &c.redials),
		counter("zmq_dial_failures_total", "Dials that found no publisher.", &c.dialFailures),
		counter("zmq_resolves_total", "Name look-ups.", &c.resolves),
		counter("zmq_resolve_failures_total", "Name look-ups that failed.", &c.resolveFailed),
		counter("zmq_confirms_total", "Times the engine behind an address was asked who it is.", &c.confirms),
		counter("zmq_confirm_failures_total", "Times it was not who it should be, or did not answer.", &c.confirmFailed),
		counter("zmq_silences_total", "Connections that were silent for too long.", &c.silences),
		counter("zmq_losses_total", "Connections that ended.", &c.losses),
		counter("zmq_moves_total", "Connections given up because the name points elsewhere now.", &c.moves),
	}
}
