package client

import (
	"math/rand/v2"
	"time"
)

// healthyAfter is how long a stream must have delivered before the next loss counts as the first again. It is not less
// than the longest wait, so a monitor that accepts and ends each stream gains nothing by being slow about it.
const healthyAfter = 5 * time.Second

// backoff says how long to wait before the next try. The waits grow and are spread by chance, so that a thousand clients
// whose monitor restarts do not come back together, and add up so that no 30 s hold more than ten tries.
type backoff struct {
	failures int // in a row
}

var waits = []struct{ min, max time.Duration }{
	{100 * time.Millisecond, time.Second},
	{500 * time.Millisecond, 3 * time.Second},
	{4 * time.Second, 5 * time.Second}, // from here on
}

func (b *backoff) next() time.Duration {
	w := waits[min(b.failures, len(waits)-1)]
	b.failures++
	return w.min + rand.N(w.max-w.min)
}

func (b *backoff) reset() { b.failures = 0 }
