package registration

import (
	"cmp"
	"fmt"
	"slices"
)

// RankEndpoint is one load socket to subscribe to.
type RankEndpoint struct {
	WorkerID string
	Rank     int32
	// Host is a name or an IP address without brackets; Port is 1 to 65535.
	Host string
	Port int
	// Topic is to be accepted exactly if TopicKnown, otherwise an empty topic and "load" are.
	Topic      string
	TopicKnown bool
	// ServerKey is the publisher's CURVE public key as Z85 text; empty: the monitor's default.
	ServerKey string
	// Trusted says that the endpoint was configured by hand: its data counts without [Registry.Confirm].
	Trusted bool
	// Generation changes when another engine was found behind the worker's address: the rank is to be dialled anew.
	Generation uint64
}

// Dialer subscribes to load sockets.
type Dialer interface {
	// SetTargets hands over the full set, sorted by worker and rank, one entry for each rank and no socket twice. It must
	// not block.
	SetTargets([]RankEndpoint)
}

// dialled lists the sockets of all workers, and why each of the other ranks has none. One socket cannot feed two workers
// (case E7: two deployments with one port base): whoever names it in the configuration keeps it before those whose engines
// advertise it, and where that decides nothing, neither has it. choices are sorted by worker.
func dialled(choices []*choice) (ends []RankEndpoint, refused map[rankKey]string) {
	refused = make(map[rankKey]string)
	total := 0
	for _, c := range choices {
		total += len(c.dialled().ranks)
		for _, r := range c.dialled().refused {
			refused[rankKey{c.worker.ID, r.rank}] = r.why
		}
	}
	ends = make([]RankEndpoint, 0, total)
	taken := make(map[endpoint]int, total) // -> index in ends
	clash := make(map[int]string)          // index in ends -> why it is left out
	for _, c := range choices {
		for _, e := range c.dialled().ranks {
			at := endpoint{e.Host, e.Port}
			i, twice := taken[at]
			switch {
			case !twice:
				taken[at] = len(ends)
			case ends[i].Trusted && !e.Trusted:
				clash[len(ends)] = shared(&ends[i], &e)
			case e.Trusted && !ends[i].Trusted:
				taken[at] = len(ends)
				clash[i] = shared(&ends[i], &e)
			default:
				clash[len(ends)] = shared(&ends[i], &e)
				clash[i] = cmp.Or(clash[i], clash[len(ends)])
			}
			ends = append(ends, e)
		}
	}
	if len(clash) == 0 {
		return ends, refused
	}
	for i, why := range clash {
		refused[rankKey{ends[i].WorkerID, ends[i].Rank}] = why
		ends[i].Port = 0
	}
	return slices.DeleteFunc(ends, func(e RankEndpoint) bool { return e.Port == 0 }), refused
}

func shared(a, b *RankEndpoint) string {
	return fmt.Sprintf("workers %q and %q have the same load socket %s: start one of their engines with another load port",
		a.WorkerID, b.WorkerID, endpoint{a.Host, a.Port})
}

// rankKey names one rank of the fleet.
type rankKey struct {
	worker string
	rank   int32
}

// hand lets the sink show which ranks are not dialled and the dialer know which are. The sink comes first: what it is told
// of a rank that is dialled from now on must not come after what the dialer says of it.
func (r *Registry) hand(choices []*choice) {
	ends, refused := dialled(choices)
	for key := range r.refused {
		if refused[key] == "" {
			r.opts.Sink.SetRankNote(key.worker, key.rank, "")
		}
	}
	for key, why := range refused { // all of them: a worker that began anew has forgotten its notes
		r.opts.Sink.SetRankNote(key.worker, key.rank, why)
	}
	r.refused = refused
	if r.opts.Dialer != nil && (!r.dialled || !slices.Equal(ends, r.ends)) {
		r.ends, r.dialled = ends, true
		r.opts.Dialer.SetTargets(slices.Clone(ends))
	}
}
