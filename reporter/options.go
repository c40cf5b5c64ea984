package reporter

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"

	"github.com/loadmonitor/loadmonitor/load"
)

// Defaults of Options.
const (
	DefaultStaleAfter = 3 * time.Second
	DefaultMaxTargets = 16
)

// Sampler appends the newest sample of every rank to dst and returns it. It returns at once with what there is and is
// called from several goroutines; it keeps nothing of dst.
//
// SnapshotTimeUnixMs of each rank is when that rank was sampled, by this machine's clock; 0 means now. No rank means that
// there is nothing newer than the last call: what was known before is sent again, with the times it had. The error says
// why sampling failed; it is sent as last_error together with whatever ranks there are.
type Sampler func(dst []load.RankLoad) ([]load.RankLoad, error)

// Options configure a Reporter. Only Sample is required.
type Options struct {
	// Sample reads the newest samples.
	Sample Sampler

	// Role is what every report says this worker is. RoleUnspecified means RoleRegular.
	Role load.Role
	// Model and Zone are sent when they are not empty.
	Model, Zone string

	// StaleAfter is the age above which a sample makes a report STALE. 0 means DefaultStaleAfter.
	StaleAfter time.Duration
	// MaxTargets bounds how many monitors may be registered at a time. 0 means DefaultMaxTargets.
	MaxTargets int

	// AdminKey is the bearer token that registration wants. Empty: none is asked for.
	AdminKey string
	// RequireAdminKey refuses every registration while AdminKey is empty, as engines do whose endpoint is closed by
	// default.
	RequireAdminKey bool

	// DialOptions are added to those of the reporter, for TLS or a dialer of one's own. The default is plain h2c.
	DialOptions []grpc.DialOption

	// Sending is called with the sequence of each report just before it is handed to the transport, from the goroutine that
	// sends it. It must not block. nil: nobody is told.
	Sending func(sequence uint64)

	// Logger gets one line per episode of trouble with a target. nil discards.
	Logger *slog.Logger
}

func (o *Options) setDefaults() error {
	if o.Sample == nil {
		return errors.New("reporter: Options.Sample is nil: give the function that reads the ranks' newest samples")
	}
	switch o.Role {
	case load.RoleUnspecified:
		o.Role = load.RoleRegular
	case load.RoleRegular, load.RolePrefill, load.RoleDecode:
	default:
		return fmt.Errorf("reporter: Options.Role is %d: want a role of package load", o.Role)
	}
	if !utf8.ValidString(o.Model) {
		return fmt.Errorf("reporter: Options.Model %q is not valid UTF-8", o.Model)
	}
	if !utf8.ValidString(o.Zone) {
		return fmt.Errorf("reporter: Options.Zone %q is not valid UTF-8", o.Zone)
	}
	if o.StaleAfter < 0 {
		return fmt.Errorf("reporter: Options.StaleAfter is %v: want more than 0, or 0 for %v", o.StaleAfter, DefaultStaleAfter)
	}
	if o.StaleAfter == 0 {
		o.StaleAfter = DefaultStaleAfter
	}
	if o.MaxTargets < 0 {
		return fmt.Errorf("reporter: Options.MaxTargets is %d: want 1 or more, or 0 for %d", o.MaxTargets, DefaultMaxTargets)
	}
	if o.MaxTargets == 0 {
		o.MaxTargets = DefaultMaxTargets
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}
