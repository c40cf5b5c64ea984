package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

const (
	// defaultHeartbeat is assumed until the monitor tells its own.
	defaultHeartbeat = time.Second
	// ageInterval paces the views that a silent link brings forth, as the monitor paces its own.
	ageInterval = 5 * time.Millisecond
)

var errNoFrame = errors.New("the stream was open, but no frame came")

// timeoutLocked returns how long the monitor may be silent.
func (c *Client) timeoutLocked() time.Duration { return max(c.linkTimeout, 3*c.heartbeat) }

// downErrLocked says why the link is down.
func (c *Client) downErrLocked() error {
	err := ErrNotConnected
	if c.held != nil {
		err = fmt.Errorf("%w for longer than %v", ErrSilent, c.timeoutLocked())
	}
	if c.link.Trouble != nil {
		err = fmt.Errorf("%w: %w", err, c.link.Trouble)
	}
	return err
}

// explainLocked brings Err of a link that is down up to date and reports whether that says something new.
func (c *Client) explainLocked() (news bool) {
	if c.link.Up {
		return false
	}
	was := c.link.Err
	c.link.Err = c.downErrLocked()
	return was == nil || was.Error() != c.link.Err.Error()
}

// receive applies a frame of s. An error means that the monitor cannot be believed.
func (c *Client) receive(s *stream, r *loadmonitorpb.WatchResponse, arrival time.Time) error {
	held, first := c.held, s.frames.updates == 0
	out, err := s.frames.take(r)
	if err != nil {
		return err
	}
	if s.epoch != r.GetEpoch() {
		s.epoch, s.clock = r.GetEpoch(), nil
	}
	s.clock = s.clock.observe(s.asked, arrival, instantFromProto(r.GetNowUs()))

	// Heartbeats and new versions come from the monitor's publisher and prove it alive. The first update of a stream is
	// made on request: when it shows nothing newer than what is held, the publisher may be stuck. Frames of another epoch
	// say nothing about the one that is held, until their picture replaces it.
	known := held != nil && held.epoch == r.GetEpoch()
	alive := known && (!first || r.GetVersion() > held.version) || !known && out.picture != nil

	if out.picture != nil {
		c.distrust = false
		if first {
			s.delivered = arrival
		}
		c.count.update(out, held)
	}
	if c.hear(s, out.picture, r.GetHeartbeatMs(), alive, arrival) {
		c.log.Info("link to the load monitor is up", "monitor", c.target, "epoch", r.GetEpoch(), "version", r.GetVersion())
	}
	return nil
}

// hear notes that a frame of s has arrived, and shows the picture that it completed, if it did. It reports whether the
// link came up.
func (c *Client) hear(s *stream, p *picture, heartbeatMs uint32, alive bool, arrival time.Time) (up bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if heartbeat := time.Duration(heartbeatMs) * time.Millisecond; heartbeat > 0 && heartbeat != c.heartbeat {
		c.heartbeat = heartbeat
		c.recheck()
	}
	s.silentAt = arrival.Add(c.timeoutLocked())
	if s.delivered.IsZero() {
		s.silentAt = arrival.Add(max(firstUpdateTimeout, c.timeoutLocked()))
	}
	if alive {
		c.link.Heard = arrival
	}
	if p == nil {
		return false
	}

	changed := p != c.held
	c.held, c.clock, c.link.Trouble = p, s.clock, nil
	switch {
	case alive && !c.link.Up:
		c.link.Up, c.link.Since, c.link.Err = true, arrival, nil
		c.ageing = nil
		c.recheck()
		up = true
	case !c.link.Up && changed:
		c.ageLocked(arrival)
	}
	news := c.explainLocked()
	c.publishLocked(changed || up || news)
	return up
}

// recheck makes keepTime look at its deadlines, because one may have become earlier.
func (c *Client) recheck() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// keepTime makes events of what happens by the client's clock alone. Deadlines that moved on since the timer was set
// are noticed when it fires, so that frames need not touch it.
func (c *Client) keepTime(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-c.wake:
		}
		next, down := c.tick(time.Now())
		if down != nil {
			c.log.Warn("link to the load monitor is down, its last word ages by our own clock", "monitor", c.target, "error", down)
		}
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
	}
}

// tick does what is due and returns when to look again; the zero time: not before recheck. down is why the link went down
// just now.
func (c *Client) tick(now time.Time) (next time.Time, down error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	earlier := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}

	if s := c.stream; s != nil {
		if now.Before(s.silentAt) {
			earlier(s.silentAt)
		} else {
			s.cancel(errNoFrame)
		}
	}
	if c.link.Up {
		if end := c.link.Heard.Add(c.timeoutLocked()); now.Before(end) {
			earlier(end)
			return next, nil
		}
		c.count.linkLosses.Add(1)
		c.link.Up, c.link.Since = false, now
		c.explainLocked()
		down = c.link.Err
		c.ageLocked(now)
		c.publishLocked(true)
	} else if c.ageing != nil {
		if at, ok := c.ageing.next(); ok && !now.Before(at) && c.ageing.advance(now) {
			c.aged = now
			c.publishLocked(true)
		}
	}
	if c.ageing != nil {
		if at, ok := c.ageing.next(); ok {
			if paced := c.aged.Add(ageInterval); at.Before(paced) {
				at = paced
			}
			earlier(at)
		}
	}
	return next, down
}

// ageLocked starts ageing what is held.
func (c *Client) ageLocked(now time.Time) {
	c.ageing = newAgeing(c.held, c.clock, fmt.Sprintf("the monitor has been silent for longer than %v", c.timeoutLocked()))
	c.ageing.advance(now)
	c.aged = now
}
