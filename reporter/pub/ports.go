package pub

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Auto asks for the first range of ports that is free of the engine's other ranges.
const Auto = "auto"

const maxPort = 65535

// Why an engine's load has no ports. They are wrapped with the offender and the remedy.
var (
	// ErrDeclined: Auto finds no range. The engine starts, publishes no load and advertises none.
	ErrDeclined = errors.New("load is not published")
	// ErrEndpoint: an endpoint that was given cannot work. The engine must not start.
	ErrEndpoint = errors.New("load endpoint cannot work")
)

// Ports is what an engine's configuration says of its ZMQ endpoints. Rank r of each takes the given port + r.
type Ports struct {
	// Load is Auto or tcp://HOST:PORT of rank 0, where HOST is *, 0.0.0.0 or [::].
	Load string
	// KVEvents and Replay are the endpoints that the engine's cache events take, in the same form. Empty: none.
	KVEvents, Replay string
	// Ranks is the number of DP ranks.
	Ranks int
}

// Range is where an engine's load is published: rank r on port Base+r of Host.
type Range struct {
	Host  string
	Base  int
	Ranks int
}

// Endpoint returns the address of a rank.
func (r Range) Endpoint(rank int) string { return "tcp://" + r.Host + ":" + strconv.Itoa(r.Base+rank) }

// String tells the range for people.
func (r Range) String() string {
	return fmt.Sprintf("ports %d to %d", r.Base, r.last())
}

func (r Range) last() int { return r.Base + r.Ranks - 1 }

func (r Range) overlaps(o Range) bool {
	return r.Ranks > 0 && o.Ranks > 0 && r.Base <= o.last() && o.Base <= r.last()
}

// Resolve applies the engine's port rule: Auto packs the load right after the KV-events range and jumps past the replay
// range when the two overlap; a given endpoint is taken as it is or refused. The error wraps ErrDeclined or ErrEndpoint.
func (p Ports) Resolve() (Range, error) {
	because := ErrEndpoint
	if p.Load == Auto {
		because = ErrDeclined
	}
	if p.Ranks < 1 {
		return Range{}, fmt.Errorf("%d DP ranks: want 1 or more: %w", p.Ranks, because)
	}
	kv, err := p.taken("KV-events", p.KVEvents)
	if err != nil {
		return Range{}, fmt.Errorf("%w: %w", err, because)
	}
	replay, err := p.taken("replay", p.Replay)
	if err != nil {
		return Range{}, fmt.Errorf("%w: %w", err, because)
	}
	var r Range
	if p.Load == Auto {
		r, err = pack(kv, replay)
	} else {
		r, err = p.given(kv, replay)
	}
	if err == nil && r.last() > maxPort {
		err = fmt.Errorf("%v pass port %d: choose a lower port", r, maxPort)
	}
	if err != nil {
		return Range{}, fmt.Errorf("%w: %w", err, because)
	}
	return r, nil
}

// taken returns the ports of another endpoint of the engine: none when it is empty or not TCP. One that names a host takes
// its ports too, as the engine may bind that address.
func (p Ports) taken(name, endpoint string) (Range, error) {
	if !strings.HasPrefix(endpoint, "tcp://") {
		return Range{}, nil
	}
	host, port, err := parseEndpoint(endpoint)
	if err != nil {
		return Range{}, fmt.Errorf("%s endpoint %w", name, err)
	}
	return Range{Host: host, Base: port, Ranks: p.Ranks}, nil
}

// pack places the load behind the KV events.
func pack(kv, replay Range) (Range, error) {
	if kv.Ranks == 0 || !bindable(kv.Host) {
		return Range{}, errors.New("auto packs the load behind the KV events, and they bind no TCP ports on every address: " +
			"give a load endpoint such as tcp://*:5559")
	}
	r := Range{Host: kv.Host, Base: kv.Base + kv.Ranks, Ranks: kv.Ranks}
	if r.overlaps(replay) {
		r.Base = replay.Base + replay.Ranks
	}
	return r, nil
}

// given checks an endpoint that the configuration names.
func (p Ports) given(kv, replay Range) (Range, error) {
	if !strings.HasPrefix(p.Load, "tcp://") {
		return Range{}, fmt.Errorf("%q: want auto or tcp://*:PORT", p.Load)
	}
	host, port, err := parseEndpoint(p.Load)
	if err != nil {
		return Range{}, err
	}
	if !bindable(host) {
		return Range{}, fmt.Errorf("%q: host %s cannot be bound: want *, 0.0.0.0 or [::]", p.Load, host)
	}
	r := Range{Host: host, Base: port, Ranks: p.Ranks}
	switch {
	case r.overlaps(kv):
		return Range{}, fmt.Errorf("%q: %v overlap those of the KV events, %v: choose others", p.Load, r, kv)
	case r.overlaps(replay):
		return Range{}, fmt.Errorf("%q: %v overlap those of the replay, %v: choose others", p.Load, r, replay)
	}
	return r, nil
}

// parseEndpoint reads tcp://HOST:PORT. An IPv6 host stays in brackets.
func parseEndpoint(endpoint string) (host string, port int, err error) {
	host, digits, err := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil || host == "" {
		return "", 0, fmt.Errorf("%q: want tcp://HOST:PORT", endpoint)
	}
	if port, err = strconv.Atoi(digits); err != nil || port < 1 || port > maxPort {
		return "", 0, fmt.Errorf("%q: port %q: want 1 to %d", endpoint, digits, maxPort)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host, port, nil
}

// bindable reports whether an engine binds its load to the host.
func bindable(host string) bool { return host == "*" || host == "0.0.0.0" || host == "[::]" }
