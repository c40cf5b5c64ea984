package zmq

import (
	"fmt"
	"net/netip"
	"strings"
)

// Target is one rank to subscribe to. Two targets with the same worker and rank are one: the first counts.
type Target struct {
	WorkerID string
	Rank     int32
	// Host is a name or an IP address, with or without brackets. Port is 1 to 65535; others are never dialled.
	Host string
	Port int
	// Topic is accepted exactly if TopicKnown, otherwise an empty topic and "load" are.
	Topic      string
	TopicKnown bool
	// ServerKey is the publisher's CURVE public key as Z85 text; empty: Options.Curve.ServerKey.
	ServerKey string
	// Trusted says that the endpoint was configured by hand: its data counts without Options.Confirm.
	Trusted bool
	// Generation changes when registration found another life of the engine behind the address: the rank is dialled and
	// confirmed anew.
	Generation uint64
}

type targetKey struct {
	worker string
	rank   int32
}

func (t *Target) key() targetKey { return targetKey{t.WorkerID, t.Rank} }

// invalid says why the target must not be dialled; empty: it may.
func (t *Target) invalid() string {
	switch {
	case t.Port < 1 || t.Port > 65535:
		return fmt.Sprintf("port %d is not dialled: it must be 1 to 65535; check the engine's load port base", t.Port)
	case t.Host == "":
		return "the endpoint has no host: configure load_endpoints for this worker"
	case len(t.Topic) > maxTopicBytes:
		return fmt.Sprintf("the topic has %d bytes: at most %d are subscribed to", len(t.Topic), maxTopicBytes)
	case t.ServerKey != "":
		if err := checkKey(t.ServerKey); err != nil {
			return fmt.Sprintf("the CURVE server key of this worker %v", err)
		}
	}
	return ""
}

const maxTopicBytes = 255

// literal returns the address if host is one rather than a name.
func literal(host string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return a.Unmap(), err == nil
}
