package load

// Role is what a worker does.
type Role uint8

const (
	RoleUnspecified Role = iota
	RoleRegular          // prefill and decode in one engine
	RolePrefill
	RoleDecode
)

// String returns the word used in configuration and JSON.
func (r Role) String() string {
	switch r {
	case RoleRegular:
		return "plain"
	case RolePrefill:
		return "prefill"
	case RoleDecode:
		return "decode"
	}
	return "unspecified"
}

// ParseRole reads the words of configuration: "plain" (also "regular" and "", the default), "prefill", "decode".
func ParseRole(s string) (Role, bool) {
	switch s {
	case "", "plain", "regular":
		return RoleRegular, true
	case "prefill":
		return RolePrefill, true
	case "decode":
		return RoleDecode, true
	}
	return RoleUnspecified, false
}

// Transport is the way a worker's reports take to the monitor. One worker has one at a time (rule ID6).
type Transport uint8

const (
	TransportUnspecified Transport = iota
	TransportPush                  // the engine streams over gRPC
	TransportZMQ                   // the monitor subscribes to the engine's sockets
	TransportDial                  // the monitor dials the engine's reporter port
	TransportPoll                  // the monitor polls an HTTP endpoint
)

// String returns the word used in configuration, metrics and JSON.
func (t Transport) String() string {
	switch t {
	case TransportPush:
		return "push"
	case TransportZMQ:
		return "zmq"
	case TransportDial:
		return "dial"
	case TransportPoll:
		return "poll"
	}
	return "unspecified"
}

// Freshness says whether a load may be relied on (rule FR2). Anything but Fresh may not.
type Freshness uint8

const (
	FreshnessUnspecified Freshness = iota
	Fresh                          // worker: every expected rank is present and fresh; rank: reported within the window
	Stale                          // reported once, but too long ago, or without usable capacity
	Missing                        // nothing was ever reported
	Incomplete                     // worker only: the ranks reported are not the ranks expected
	Unreachable                    // worker only: the engine itself said that it cannot be sampled
)

// String returns the word used in JSON and metrics.
func (f Freshness) String() string {
	switch f {
	case Fresh:
		return "fresh"
	case Stale:
		return "stale"
	case Missing:
		return "missing"
	case Incomplete:
		return "incomplete"
	case Unreachable:
		return "unreachable"
	}
	return "unspecified"
}

// Status is what an engine says of its own report.
type Status uint8

const (
	StatusUnspecified Status = iota
	StatusHealthy            // every rank's sample is young enough by the engine's clock
	StatusStale              // some rank's is not
	StatusUnreachable        // the engine has no sample: no ranks
)

// FleetState tells an empty list of workers apart from one that is not known yet (rule SNAP5).
type FleetState uint8

const (
	FleetStateUnspecified FleetState = iota
	FleetWarmingUp                   // the first discovery pass has not ended
	FleetReady                       // at least one worker is registered
	FleetNoWorkers                   // discovery ended and no worker is registered
)

// String returns the word used in JSON.
func (s FleetState) String() string {
	switch s {
	case FleetWarmingUp:
		return "warming_up"
	case FleetReady:
		return "ready"
	case FleetNoWorkers:
		return "no_workers"
	}
	return "unspecified"
}

// Instant is a reading of the monitor's monotonic clock in microseconds since its epoch began (rule FR1). 0 means never:
// the clock of an epoch starts above it.
type Instant int64
