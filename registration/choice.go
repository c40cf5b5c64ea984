package registration

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/loadmonitor/loadmonitor/load"
)

// choice is what registration makes of one worker: its source's words, completed by its engine's. It is not changed once
// it is made.
type choice struct {
	worker load.Worker // as the sink gets it
	note   string      // why nothing feeds the worker as long as this stands; empty: something may

	dialling *dialling // nil: nothing is dialled
}

// dialling is what registration makes of the ranks of a worker that is fed over ZMQ.
type dialling struct {
	ranks   []RankEndpoint // to dial, sorted
	refused []refusedRank  // why the others are not dialled
}

var noDialling dialling

// dialled returns what is made of the ranks, which nobody changes.
func (c *choice) dialled() *dialling { return cmp.Or(c.dialling, &noDialling) }

type refusedRank struct {
	rank int32
	why  string
}

// asking is shown until a worker is known well enough to be fed.
const asking = "asking the engine how it publishes its load"

// choose decides how a worker is fed (rule ID6) and what it is. What is configured wins; the rest is the engine's word:
//
//   - Transport: zmq where the engine advertises load sockets of which one at least can be dialled, else push. An engine
//     that answers, but not this question, gets push; one that is not there keeps the question open.
//   - Role: as its disaggregation_mode says, else plain.
//   - Ranks: its dp_size; over ZMQ at least as many as it has load sockets, and one where it tells neither.
//   - Models: over ZMQ the name that it serves its model under, so that another model behind the address is another worker
//     (case L4). On push the reports name their model themselves.
//
// A worker is not fed over ZMQ while its engine contradicts the configured role or models (case A4): no message says
// which engine it comes from.
func choose(t *target, k known, o *Options) *choice {
	c := &choice{worker: t.worker}
	w := &c.worker
	w.Role = cmp.Or(w.Role, k.facts.mode, load.RoleRegular)
	switch {
	case w.Conflict != "":
		return c
	case !k.decided() && t.open():
		w.Transport, w.TransportReason, c.note = load.TransportUnspecified, asking, asking
		if k.trouble != "" {
			c.note += ": " + k.trouble
		}
		return c
	}
	c.chooseTransport(t, k, o)
	if w.Transport == load.TransportZMQ {
		c.chooseRanks(t, k)
		return c
	}
	w.ExpectedRanks = cmp.Or(w.ExpectedRanks, k.facts.ranks)
	return c
}

func (c *choice) chooseTransport(t *target, k known, o *Options) {
	w, sockets := &c.worker, &k.facts.load
	why := ""
	switch {
	case len(t.socketSpec().endpoints) > 0:
		why = "load_endpoints are configured"
	case w.Transport != load.TransportUnspecified:
		why = "configured"
	case !k.told:
		why = k.trouble
	case sockets.wrong != "":
		why = sockets.wrong
	case !sockets.told:
		// A constant, which all workers of a fleet that pushes share.
		w.Transport, w.TransportReason = load.TransportPush, "push: the engine advertises no load port"
		return
	case o.Dialer == nil:
		why = "this monitor takes no load over ZMQ"
	default:
		why = sockets.unreachable(t)
		if why == "" {
			w.Transport = load.TransportZMQ
			why = fmt.Sprintf("the engine advertises load port %d", sockets.base)
		}
	}
	w.Transport = cmp.Or(w.Transport, load.TransportPush)
	w.TransportReason = w.Transport.String() + ": " + why
}

// unreachable says why none of the sockets can be dialled; empty: some can.
func (s *loadSockets) unreachable(t *target) string {
	if _, why := s.hostAt(hostOf(t.worker.Origin)); why != "" {
		return why
	}
	first := ""
	for rank := range s.count {
		_, why := s.portOf(rank)
		if why == "" {
			return ""
		}
		first = cmp.Or(first, why)
	}
	return first
}

// chooseRanks lists the sockets of a worker that is fed over ZMQ.
func (c *choice) chooseRanks(t *target, k known) {
	w, sockets := &c.worker, &k.facts.load
	if name := k.facts.model(); len(w.Models) == 0 && name != "" {
		w.Models = []string{name}
	}
	if w.ExpectedRanks == 0 {
		w.ExpectedRanks = max(k.facts.ranks, sockets.count)
	}
	if c.note = contradiction(t, &k.facts); c.note != "" {
		return
	}
	spec := t.socketSpec()
	configured := len(spec.endpoints) > 0
	switch {
	case configured:
	case !k.told:
		c.note = "where the engine publishes its load is not known"
		if k.trouble != "" {
			c.note += ": " + k.trouble
		}
		return
	case sockets.wrong != "":
		c.note = sockets.wrong
		return
	case !sockets.told:
		c.note = "the engine advertises no load port: start it with one, or configure load_endpoints"
		return
	}
	d := &dialling{}
	c.dialling = d
	host, noHost := "", ""
	if !configured {
		host, noHost = sockets.hostAt(hostOf(w.Origin))
	}
	for rank := range w.ExpectedRanks {
		at, why := endpoint{host: host}, noHost
		switch {
		case configured:
			at = spec.endpoints[rank]
		case why == "":
			at.port, why = sockets.portOf(rank)
		}
		if why != "" {
			d.refused = append(d.refused, refusedRank{int32(rank), why})
			continue
		}
		d.ranks = append(d.ranks, RankEndpoint{
			WorkerID: w.ID, Rank: int32(rank), Host: at.host, Port: at.port,
			Topic: cmp.Or(spec.topic, sockets.topic), TopicKnown: spec.topic != "" || sockets.topicKnown,
			ServerKey: spec.serverKey, Trusted: configured, Generation: k.generation,
		})
	}
}

// contradiction says in what an engine is not the configured one; empty: in nothing that both name.
func contradiction(t *target, f *facts) string {
	w := &t.worker
	switch {
	case w.Role == load.RoleUnspecified && f.strangeMode:
		return "the engine's disaggregation_mode is none that this monitor knows: configure its role"
	case w.Role != load.RoleUnspecified && f.mode != load.RoleUnspecified && f.mode != w.Role:
		return fmt.Sprintf("the engine is %s and registered as %s: correct the role", f.mode, w.Role)
	case len(w.Models) == 0 || f.model() == "", slices.Contains(w.Models, f.served), slices.Contains(w.Models, f.path):
		return ""
	}
	return fmt.Sprintf("the engine serves model %q and %q is registered: correct the models", clipped(f.model()), clipped(w.Models[0]))
}
