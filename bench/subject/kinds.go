package subject

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Kind names a program.
type Kind string

const (
	Monitor  Kind = "monitor"  // the product: reports in, watches out
	Receiver Kind = "receiver" // a gRPC handler that decodes reports and drops them
	Sender   Kind = "sender"   // a gRPC handler that sends ready bytes to whoever watches, once for each report it gets
	Pipe     Kind = "pipe"     // a gRPC handler that passes the bytes of reports on to whoever watches
	Poller   Kind = "poller"   // gets a page over HTTP and reads it as Prometheus text, again and again

	Bridge     Kind = "bridge"     // the product: load from ZMQ sockets
	ZMQLoop    Kind = "zmq loop"   // a loop in C that receives from ZMQ sockets; what it gets is decoded and dropped
	Publishers Kind = "publishers" // what the two above receive from
)

// Config is what a subject needs to know.
type Config struct {
	Kind    Kind
	CPUs    *unix.CPUSet `json:"-"` // to run on; nil: all
	Workers int          // of a Monitor
	Ranks   int

	// FrameBytes is what a Sender sends, and FirstBytes what it sends to who has just come.
	FrameBytes, FirstBytes int
	// SpreadMs is the time over which a Sender spreads the sends of one frame, as the product does; 0: all at once.
	SpreadMs int
	// IntervalMs is the shortest time between two sends of a Pipe, and PadBytes what it adds to each report.
	IntervalMs, PadBytes int
	// URL and Rate are what a Poller polls, and how often a second; 0: without a pause.
	URL  string
	Rate float64

	// Endpoints are what a Bridge and a ZMQLoop subscribe to; the others are where Publishers tell that they are: Workers ×
	// Ranks sockets, each of which sends Rate times a second, or with SilentAfterMs above 0 only that long.
	Endpoints     []string
	SilentAfterMs int
	// Alone lets a Bridge count what it decoded instead of handing it to an aggregator.
	Alone bool
	// WarmMs and WindowMs are the times of a ZMQLoop, which measures by itself.
	WarmMs, WindowMs int
}

// program is a subject within its process. Its methods other than run may be called while run runs.
type program interface {
	// run serves until ctx ends; ready is called with where, once.
	run(ctx context.Context, ready func(addr string)) error
	// count adds the program's own counters.
	count(*Stats)
	// measure lets delays be noted from now on, of reports that carry microseconds since startUs as their sequence.
	measure(startUs int64)
}

func newProgram(c Config) (program, error) {
	switch c.Kind {
	case Monitor:
		return newMonitor(c)
	case Receiver:
		return newReceiver(), nil
	case Sender:
		return newSender(c), nil
	case Pipe:
		return newPipe(c), nil
	case Poller:
		return newPoller(c), nil
	case Bridge:
		return newBridge(c)
	case ZMQLoop:
		return &zmqLoop{c: c}, nil
	case Publishers:
		return &publishers{c: c}, nil
	}
	return nil, fmt.Errorf("subject %q is not known", c.Kind)
}

// Address is the address of worker i of a Monitor; nothing is there.
func Address(i int) string {
	ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	return "http://" + netip.AddrPortFrom(ip, 30000).String()
}

// Addresses are the first n.
func Addresses(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = Address(i)
	}
	return list
}
