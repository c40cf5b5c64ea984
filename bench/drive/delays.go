package drive

import (
	"math/bits"
	"time"
)

// Delays is a distribution of delays in fixed memory, exact to a microsecond below 128 µs and to 1.6 % above. The zero
// value is empty. It is used by one goroutine at a time; others merge their own.
type Delays struct {
	counts [64 * subBuckets]uint64
	n      uint64
	max    time.Duration
}

// subBuckets divide each power of two.
const subBuckets = 64

// Add counts one delay. Negative ones, which two clocks can give, count as zero.
func (d *Delays) Add(delay time.Duration) {
	d.counts[bucket(delay)]++
	d.n++
	d.max = max(d.max, delay)
}

func bucket(delay time.Duration) int {
	us := uint64(max(0, delay.Microseconds()))
	if us < 2*subBuckets {
		return int(us)
	}
	shift := bits.Len64(us) - 7 // leaves 64 to 127
	return shift*subBuckets + int(us>>shift)
}

// upper returns the largest delay of a bucket.
func upper(bucket int) time.Duration {
	if bucket < 2*subBuckets {
		return time.Duration(bucket) * time.Microsecond
	}
	shift := bucket/subBuckets - 1
	return time.Duration((uint64(bucket-shift*subBuckets)+1)<<shift-1) * time.Microsecond
}

// Merge adds the delays of other.
func (d *Delays) Merge(other *Delays) {
	for i, n := range other.counts {
		d.counts[i] += n
	}
	d.n += other.n
	d.max = max(d.max, other.max)
}

// Count returns how many delays were added.
func (d *Delays) Count() uint64 { return d.n }

// Max returns the longest delay.
func (d *Delays) Max() time.Duration { return d.max }

// Quantile returns the delay that the share q of all delays does not pass; 0 when there are none.
func (d *Delays) Quantile(q float64) time.Duration {
	if d.n == 0 {
		return 0
	}
	rank := uint64(q * float64(d.n))
	var seen uint64
	for i, n := range d.counts {
		if seen += n; seen > rank {
			return min(upper(i), d.max)
		}
	}
	return d.max
}
