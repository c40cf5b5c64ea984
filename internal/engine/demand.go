package engine

import "math"

// demand is how much an engine is asked for over time, relative to its mean: a compressed day and bursts that hit most of
// the fleet at once, which all engines of a seed share, and a slow swing of the engine's own. It is a pure function.
type demand struct {
	seed   uint64
	worker uint64
}

const (
	dayLength  = 300.0 // seconds
	daySwing   = 0.3
	burstEvery = 30.0 // at most one burst begins in each stretch of this length
	burstOften = 0.4
	burstShare = 0.7 // of the engines that a burst hits
	ownSwing   = 0.2
)

// factor returns the demand at t seconds after the fleet's start: about 1 on average, never negative.
func (d demand) factor(t float64) float64 {
	day := 1 + daySwing*math.Sin(2*math.Pi*(t/dayLength+d.fleet(0, 0)))
	period := 60 + 120*d.own(1)
	own := 1 + ownSwing*math.Sin(2*math.Pi*(t/period+d.own(2)))
	stretch := math.Floor(t / burstEvery)
	// A burst may reach into the stretch after its own.
	return day * own * (1 + d.burst(stretch, t) + d.burst(stretch-1, t))
}

// burst returns what the burst of a stretch adds at t.
func (d demand) burst(stretch, t float64) float64 {
	if stretch < 0 {
		return 0
	}
	k := uint64(stretch)
	if d.fleet(k, 1) >= burstOften || d.own(k<<8|3) >= burstShare {
		return 0
	}
	begin := stretch*burstEvery + burstEvery*d.fleet(k, 2)
	length := 4 + 10*d.fleet(k, 3)
	x := (t - begin) / length
	if x <= 0 || x >= 1 {
		return 0
	}
	return (0.5 + d.fleet(k, 4)) * math.Sin(math.Pi*x)
}

// fleet and own return numbers in [0, 1) that depend on nothing but their arguments and the seed; own ones differ from
// engine to engine.
func (d demand) fleet(k, what uint64) float64 { return unit(mix(mix(d.seed^k) + what)) }
func (d demand) own(what uint64) float64      { return unit(mix(mix(d.seed+what) ^ mix(d.worker+1))) }

func unit(h uint64) float64 { return float64(h>>11) / (1 << 53) }

// mix spreads every bit of x over the result (the finaliser of splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
