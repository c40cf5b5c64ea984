package engine

import (
	"math"
	"math/rand/v2"

	"github.com/loadmonitor/loadmonitor/load"
)

// model is the load of one engine over one life: requests arrive at random, with a rate that follows the demand, and go to
// the ranks. It is used by one goroutine at a time.
type model struct {
	p      profile
	rng    *rand.Rand
	demand demand
	mean   float64 // requests per second at demand 1

	// The rate is constant within a window. Arrivals are memoryless, so the next one may be drawn anew at its end.
	rate        float64
	windowEnd   float64
	nextArrival float64

	now   float64
	ranks []rank
	hot   int // rank that most requests go to; -1: none
}

const (
	rateWindow = 1.0  // seconds
	hotShare   = 0.85 // of the requests go to the hot rank
)

// newModel begins a life at time t, empty. The numbers follow from its arguments alone.
func newModel(role load.Role, ranks int, offered float64, seed uint64, worker, life int, t float64) *model {
	m := &model{
		p:         profiles[role],
		rng:       rand.New(rand.NewPCG(mix(seed), mix(uint64(worker)<<20|uint64(life)))),
		demand:    demand{seed: seed, worker: uint64(worker)},
		windowEnd: t,
		now:       t,
		ranks:     make([]rank, ranks),
		hot:       -1,
	}
	m.nextArrival = math.Inf(1)
	m.mean = offered * float64(ranks) * m.p.sustainable()
	speed := 0.92 + 0.16*m.demand.own(4)
	for i := range m.ranks {
		m.ranks[i] = rank{p: &m.p, speed: speed, now: t}
		m.ranks[i].gauge.at = t
	}
	return m
}

// advance lets time pass until t. While the scheduler hangs (serving is false), requests arrive and nothing else happens.
func (m *model) advance(t float64, serving bool) {
	for {
		at := min(m.nextArrival, m.windowEnd)
		if at > t {
			break
		}
		if at == m.windowEnd {
			m.openWindow()
			continue
		}
		m.nextArrival = at + m.rng.ExpFloat64()/m.rate
		r := &m.ranks[m.pick()]
		if serving {
			r.advance(at)
		}
		r.arrive(m.draw())
		if serving {
			r.admit()
		}
	}
	for i := range m.ranks {
		if serving {
			m.ranks[i].advance(t)
		} else {
			m.ranks[i].skip(t)
		}
	}
	m.now = t
}

func (m *model) openWindow() {
	at := m.windowEnd
	m.rate = m.mean * m.demand.factor(at)
	m.windowEnd = at + rateWindow
	m.nextArrival = at + m.rng.ExpFloat64()/m.rate
}

// pick chooses the rank of the next request.
func (m *model) pick() int {
	if m.hot >= 0 && m.rng.Float64() < hotShare {
		return m.hot
	}
	return m.rng.IntN(len(m.ranks))
}

// draw makes the next request.
func (m *model) draw() request {
	prompt := m.tokens(m.p.prompt, m.p.maxPrompt())
	req := request{prompt: prompt, output: m.tokens(m.p.output, m.p.maxOutput)}
	if m.p.prefills {
		req.uncached = prompt
		if m.rng.Float64() < m.p.cachedOften {
			req.uncached = max(1, prompt-int32(float64(prompt)*(0.2+0.7*m.rng.Float64())))
		}
	}
	return req
}

func (m *model) tokens(s sizes, limit float64) int32 {
	return int32(min(limit, max(1, s.median*math.Exp(s.sigma*m.rng.NormFloat64()))))
}

// sample tells the load of every rank at the present time.
func (m *model) sample(unixMs int64) []load.RankLoad {
	loads := make([]load.RankLoad, len(m.ranks))
	for i := range m.ranks {
		m.ranks[i].collect()
		loads[i] = m.ranks[i].load(int32(i), unixMs)
	}
	return loads
}
