package reporter

import (
	"math/rand/v2"
	"time"
)

const (
	backoffMin = 250 * time.Millisecond
	backoffMax = 5 * time.Second

	// steady is how long a stream must live to count as a success. A monitor that accepts each stream and closes it soon
	// after is met with a growing delay.
	steady = backoffMax
)

// ladder holds the bounds between which each further delay is drawn. The first step is wide, because after a restart of
// the monitor a whole fleet stands on it; the last one bounds the tries to about ten in half a minute.
var ladder = [...]struct{ from, to time.Duration }{
	{backoffMin, time.Second},
	{time.Second, 2 * time.Second},
	{2 * time.Second, 4 * time.Second},
	{4 * time.Second, backoffMax},
}

// backoff gives the delays before the tries that follow a failure. The zero value is at its first step.
type backoff struct{ step int }

func (b *backoff) reset() { b.step = 0 }

// next draws the next delay, evenly within the step's bounds.
func (b *backoff) next() time.Duration {
	s := ladder[b.step]
	b.step = min(b.step+1, len(ladder)-1)
	return s.from + rand.N(s.to-s.from)
}
