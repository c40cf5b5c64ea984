package client

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// Options say what to watch and how. The zero value watches the whole fleet, ranks included, as fast as the monitor
// publishes, over plain HTTP/2.
type Options struct {
	// Filter selects workers; the zero value selects all.
	Filter Filter
	// WithoutRanks asks for worker aggregates only.
	WithoutRanks bool
	// MinInterval is the shortest time between two updates, in whole milliseconds (rounded up); the monitor raises or
	// lowers it to its own bounds. 0: none.
	MinInterval time.Duration
	// FullOnly asks for each update as a full picture. It costs bandwidth and is meant for finding faults.
	FullOnly bool

	// LinkTimeout is how long the monitor may be silent before its word ceases to count and the view ages by the client's
	// own clock. 0: three of the heartbeats that the monitor announces. Less than these has no effect, because the watch
	// contract calls it normal.
	LinkTimeout time.Duration

	// DialOptions are applied after the client's own, so they can replace them: transport credentials (none by default),
	// per-call credentials such as a bearer token, a dialer.
	DialOptions []grpc.DialOption

	// Logger hears one line when the link is lost and one when it is back. nil: none.
	Logger *slog.Logger
}

// Filter selects workers: each list that is not empty must contain the worker's value; of its models one is enough.
type Filter struct {
	IDs    []string
	Models []string
	Roles  []load.Role
	Zones  []string
}

func (f Filter) empty() bool {
	return len(f.IDs) == 0 && len(f.Models) == 0 && len(f.Roles) == 0 && len(f.Zones) == 0
}

// request returns what every stream of the client asks for, less the place to resume from.
func (o *Options) request() (*loadmonitorpb.WatchRequest, error) {
	if o.LinkTimeout < 0 {
		return nil, fmt.Errorf("client: LinkTimeout is %v: want 0 (three heartbeats) or more", o.LinkTimeout)
	}
	ms := (o.MinInterval + time.Millisecond - 1) / time.Millisecond
	if o.MinInterval < 0 || ms > math.MaxUint32 {
		return nil, fmt.Errorf("client: MinInterval is %v: want 0 (none) to %v", o.MinInterval, math.MaxUint32*time.Millisecond)
	}
	req := &loadmonitorpb.WatchRequest{}
	req.SetRanks(!o.WithoutRanks)
	req.SetMinIntervalMs(uint32(ms))
	req.SetFullOnly(o.FullOnly)
	if o.Filter.empty() {
		return req, nil
	}
	roles := make([]loadmonitorpb.Role, len(o.Filter.Roles))
	for i, r := range o.Filter.Roles {
		if roles[i] = roleToProto(r); roles[i] == loadmonitorpb.Role_ROLE_UNSPECIFIED {
			return nil, errors.New("client: Filter.Roles contains an unspecified role: want regular, prefill or decode")
		}
	}
	req.SetFilter(loadmonitorpb.Filter_builder{
		Ids:    slices.Clone(o.Filter.IDs),
		Models: slices.Clone(o.Filter.Models),
		Roles:  roles,
		Zones:  slices.Clone(o.Filter.Zones),
	}.Build())
	return req, nil
}
