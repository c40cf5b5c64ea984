package pub

import "time"

const (
	// DefaultEvery is at how many decode steps a changed value is sent.
	DefaultEvery = 5

	// heartbeat is after how long an unchanged value is sent again: about a second, and a little less, so that a loop that
	// turns once a second does so each time.
	heartbeat = 900 * time.Millisecond
	// stalledInterval is the least time between two looks of a stalled loop, which turns as fast as it can.
	stalledInterval = 50 * time.Millisecond
)

// pace is how often an engine's ranks publish.
type pace struct {
	every    int           // decode steps from one look to the next
	allIdle  bool          // an idle loop sends what did not change, too
	idleWait time.Duration // and then waits this long
}

// cadence decides when a rank publishes. A look, which costs an encoding, is taken at every fifth decode step, and at once
// when the rank prefills or is idle. What a look finds is sent when it changed, and otherwise as a heartbeat. All of it is
// driven by the scheduler's steps: without them there is silence.
type cadence struct {
	steps     int // decode steps since the last look
	looked    time.Time
	published time.Time
}

// look reports whether the value after this step is to be looked at.
func (c *cadence) look(step Step, p pace, now time.Time) bool {
	switch step {
	case Decode:
		c.steps++
		if c.steps < p.every && now.Sub(c.published) < heartbeat {
			return false
		}
	case Stalled:
		if now.Sub(c.looked) < stalledInterval {
			return false
		}
	}
	c.steps = 0
	c.looked = now
	return true
}

// due reports whether the value that was looked at is to be sent, and if so takes it as sent.
func (c *cadence) due(step Step, changed bool, p pace, now time.Time) bool {
	wait := heartbeat
	if step == Idle && p.allIdle {
		wait = p.idleWait
	}
	if !changed && now.Sub(c.published) < wait {
		return false
	}
	c.published = now
	return true
}
