package engine

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// Defaults of Options.
const (
	DefaultWorkers = 4
	DefaultRanks   = 2
	DefaultHost    = "127.0.0.1"
	DefaultModel   = "sim-70b"
	DefaultLoad    = 0.6
	DefaultCycle   = 100 * time.Millisecond
)

// Bounds of Options.
const (
	MaxWorkers = 16384
	MaxRanks   = 1024
	MaxLoad    = 10.0
	MinCycle   = 5 * time.Millisecond
)

// Options describe a fleet. The zero value is four plain engines with two ranks each on free ports of loopback.
type Options struct {
	Workers int // engines; 0 means DefaultWorkers
	Ranks   int // DP ranks of each; 0 means DefaultRanks

	// Host is the IP address to listen on. A wildcard is listened on, and URLs then name loopback. Empty: DefaultHost.
	Host string
	// BasePort is the port of worker 0; worker i listens on BasePort+i. Behind them lie the ports of engines that publish:
	// rank r of worker i on BasePort+Workers+i*Ranks+r. 0: any free port for each, and any free consecutive ones for the
	// ranks of a worker.
	BasePort int

	// Seed makes the numbers. Two fleets with one seed see the same demand.
	Seed uint64
	// Load is the mean offered load as a share of what an engine can serve; bursts go beyond it. 0 means DefaultLoad.
	Load float64
	// Roles are given to the workers in turn. Empty: all plain. See ParseRoles.
	Roles []load.Role
	// Model is the served model name. Empty: DefaultModel.
	Model string
	// Zones are given to the workers in turn. Empty: none.
	Zones []string
	// Transport is how the engines report. Empty: TransportPush.
	Transport Transport

	// Cycle is the time between two collections of an engine. 0 means DefaultCycle.
	Cycle time.Duration
	// StartingFor is how long a started engine answers with capacity 0, as one that still loads its weights does.
	StartingFor time.Duration

	// AdminKey is the bearer token that /v1/start_reporting wants; APIKey is the one of /server_info and /v1/loads. Empty:
	// none is wanted.
	AdminKey, APIKey string

	// ControlAddr is the host:port of the control API (see control.go). It asks for no credentials. Empty: none.
	ControlAddr string

	// Sending is called for each pushed report just before an engine sends it, from any goroutine. It must not block. nil: nobody
	// is told.
	Sending func(sourceInstance string, sequence uint64)

	// Logger gets what happens to engines. nil discards.
	Logger *slog.Logger
}

func (o *Options) setDefaults() error {
	fallback(&o.Workers, DefaultWorkers)
	fallback(&o.Ranks, DefaultRanks)
	fallback(&o.Host, DefaultHost)
	fallback(&o.Load, DefaultLoad)
	fallback(&o.Model, DefaultModel)
	fallback(&o.Cycle, DefaultCycle)
	fallback(&o.Transport, TransportPush)
	if len(o.Roles) == 0 {
		o.Roles = []load.Role{load.RoleRegular}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.Workers < 0 || o.Workers > MaxWorkers:
		return fmt.Errorf("engine: Options.Workers is %d: want 1 to %d", o.Workers, MaxWorkers)
	case o.Ranks < 0 || o.Ranks > MaxRanks:
		return fmt.Errorf("engine: Options.Ranks is %d: want 1 to %d", o.Ranks, MaxRanks)
	case o.BasePort < 0 || o.BasePort > 65535:
		return fmt.Errorf("engine: Options.BasePort is %d: want 1 to 65535, or 0 for any free port", o.BasePort)
	case o.BasePort > 0 && o.BasePort+o.Workers-1 > 65535:
		return fmt.Errorf("engine: Options.BasePort %d + %d workers passes port 65535: lower one of them", o.BasePort, o.Workers)
	case voices[o.Transport] == nil:
		return fmt.Errorf("engine: Options.Transport is %q: want one of %s", o.Transport, transportList)
	case o.BasePort > 0 && o.sockets() > 0 && o.loadPort(o.Workers)-1 > 65535:
		return fmt.Errorf("engine: Options.BasePort %d + %d workers + %d ranks that publish passes port 65535: lower one of them",
			o.BasePort, o.Workers, o.Workers*o.Ranks)
	case !(o.Load > 0 && o.Load <= MaxLoad):
		return fmt.Errorf("engine: Options.Load is %v: want above 0 up to %v, 1 being what an engine can serve", o.Load, MaxLoad)
	case o.Cycle < MinCycle:
		return fmt.Errorf("engine: Options.Cycle is %v: want at least %v", o.Cycle, MinCycle)
	case o.StartingFor < 0:
		return fmt.Errorf("engine: Options.StartingFor is %v: want 0 or more", o.StartingFor)
	}
	if _, err := netip.ParseAddr(o.Host); err != nil {
		return fmt.Errorf("engine: Options.Host is %q: want an IP address such as %s", o.Host, DefaultHost)
	}
	for _, role := range o.Roles {
		if _, ok := profiles[role]; !ok {
			return fmt.Errorf("engine: Options.Roles holds %v: want plain, prefill or decode", role)
		}
	}
	return nil
}

func fallback[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// ParseRoles reads a mix of roles such as "plain", "prefill,decode" or "prefill:1,decode:3": each role as often as its
// number says, in the given order. Fleets repeat the mix over their workers.
func ParseRoles(mix string) ([]load.Role, error) {
	var roles []load.Role
	for part := range strings.SplitSeq(mix, ",") {
		word, count, counted := strings.Cut(strings.TrimSpace(part), ":")
		role, ok := load.ParseRole(word)
		if !ok || word == "" {
			return nil, fmt.Errorf("role %q in %q: want plain, prefill or decode", word, mix)
		}
		n := 1
		if counted {
			var err error
			if n, err = strconv.Atoi(count); err != nil || n < 1 || n > MaxWorkers {
				return nil, fmt.Errorf("number %q of role %s in %q: want 1 to %d", count, word, mix, MaxWorkers)
			}
		}
		for range n {
			roles = append(roles, role)
		}
	}
	return roles, nil
}
