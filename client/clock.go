package client

import (
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// maxInstant is about 285 years; anything above comes from a broken peer and would overflow a time.Duration.
const maxInstant = 1 << 53

// clock translates the monitor's monotonic clock of one epoch into the client's own. It is immutable; the nil clock
// knows nothing.
//
// Where the monitor's clock stood at zero lies between two local times:
//
//	asked - now_us  <=  true zero  <=  arrival - now_us
//
// because a frame is stamped after the client asked for the stream and before it arrives. Both sides only get tighter
// with more frames.
type clock struct {
	zero  time.Time // the smallest (arrival - now_us)
	floor time.Time // the largest (asked - now_us)
}

// observe returns the clock that also knows of a frame stamped now, which arrived on a stream that was asked for at
// asked. It returns c itself when the frame teaches nothing.
func (c *clock) observe(asked, arrival time.Time, now load.Instant) *clock {
	if now <= 0 || now > maxInstant {
		return c
	}
	since := time.Duration(now) * time.Microsecond
	zero, floor := arrival.Add(-since), asked.Add(-since)
	if c != nil {
		if !zero.Before(c.zero) && !floor.After(c.floor) {
			return c
		}
		if c.zero.Before(zero) {
			zero = c.zero
		}
		if c.floor.After(floor) {
			floor = c.floor
		}
	}
	return &clock{zero: zero, floor: floor}
}

// at returns the local time of an instant of the monitor; the zero time for never and for a clock that knows nothing.
func (c *clock) at(i load.Instant) time.Time {
	if c == nil || i <= 0 {
		return time.Time{}
	}
	return c.zero.Add(time.Duration(min(i, maxInstant)) * time.Microsecond)
}

// notAfter returns a local time that is not later than an instant of the monitor: at, less the bound of the link.
func (c *clock) notAfter(i load.Instant) time.Time {
	t := c.at(i)
	if t.IsZero() {
		return t
	}
	return t.Add(-c.bound())
}

// bound returns how much later than its moment a local time given by at can be: no more than it took from asking for a
// stream until its first frame arrived, and no less than the shortest way of a frame.
func (c *clock) bound() time.Duration {
	if c == nil {
		return 0
	}
	// Clocks that run at different rates can make the two sides cross.
	return max(0, c.zero.Sub(c.floor))
}
