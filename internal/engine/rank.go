package engine

import "math"

// rank is one DP rank: requests wait, are prefilled one at a time, and decode together at one speed. It moves from event to
// event, so that its cost is that of the requests and not of the time that passes. Times are seconds since the fleet's
// start.
//
// All running requests make tokens at one pace, so one token clock counts for all of them: a request that starts at
// reading c and wants k tokens is done at reading c+k.
type rank struct {
	p     *profile
	speed float64 // of this engine relative to its profile
	now   float64

	waiting         queue
	waitingPrompt   int64 // sums over waiting
	waitingUncached int64

	prefilling bool
	current    request // while prefilling
	left       float64 // tokens of current still to compute

	running  []running // min-heap by done
	clock    float64
	held     int64   // sum of the running requests' prompts
	startSum float64 // sum of the clock readings at which they started

	count tally
	gauge gauges
}

type running struct {
	done   float64 // reading of the token clock at which the last token is made
	prompt int32
	output int32
}

func (r running) start() float64 { return r.done - float64(r.output) }

// tally counts since the rank began; nothing in it falls.
type tally struct {
	arrived, finished, rejected, retracted int64

	generated float64 // tokens made
	computed  float64 // uncached prompt tokens prefilled
	busy      float64 // seconds of prefill
}

type event uint8

const (
	nothing event = iota
	prefillDone
	requestDone
	tokensFull
)

// advance lets time pass until t.
func (r *rank) advance(t float64) {
	for {
		what, at := r.next()
		if what == nothing || at > t {
			r.pass(t)
			return
		}
		r.pass(at)
		switch what {
		case prefillDone:
			r.prefilling = false
			r.start(r.current)
		case requestDone:
			r.clock = r.running[0].done // exactly, so that nothing is left by rounding
			r.remove(0)
			r.count.finished++
		case tokensFull:
			r.retract()
		}
		r.admit()
	}
}

// skip lets time pass until t while the scheduler stands still.
func (r *rank) skip(t float64) { r.now = t }

// arrive takes a request at the present time, or rejects it when too many wait.
func (r *rank) arrive(req request) {
	r.count.arrived++
	if r.waiting.len() >= maxQueued {
		r.count.rejected++
		return
	}
	r.waiting.pushBack(req)
	r.waitingPrompt += int64(req.prompt)
	r.waitingUncached += int64(req.uncached)
}

// tokenRate returns the tokens per second that each running request makes.
func (r *rank) tokenRate() float64 {
	rate := r.speed / (r.p.stepBase + float64(len(r.running))*r.p.stepPerRequest)
	if r.prefilling {
		rate *= 1 - decodeTax
	}
	return rate
}

func (r *rank) computeRate() float64 {
	return r.speed * r.p.prefillRate * (1 - prefillTax*float64(len(r.running))/float64(r.p.maxRunning))
}

// next returns what happens next if nothing arrives.
func (r *rank) next() (what event, at float64) {
	at = math.Inf(1)
	if r.prefilling {
		what, at = prefillDone, r.now+r.left/r.computeRate()
	}
	n := float64(len(r.running))
	if n == 0 {
		return what, at
	}
	rate := r.tokenRate()
	if t := r.now + max(0, r.running[0].done-r.clock)/rate; t < at {
		what, at = requestDone, t
	}
	if r.p.decodes {
		if t := r.now + max(0, float64(r.p.maxTokens)-r.used())/(n*rate); t < at {
			what, at = tokensFull, t
		}
	}
	return what, at
}

// pass moves the rank to time t, before which no event is due.
func (r *rank) pass(t float64) {
	dt := max(0, t-r.now)
	r.now = max(r.now, t)
	if n := len(r.running); n > 0 {
		made := dt * r.tokenRate()
		if r.p.decodes {
			r.count.generated += float64(n) * made
		}
		r.clock += made
	}
	if r.prefilling {
		computed := min(r.left, dt*r.computeRate())
		r.left -= computed
		r.count.computed += computed
		r.count.busy += dt
	}
}

// used returns the KV tokens in use.
func (r *rank) used() float64 {
	used := float64(r.held)
	if r.p.decodes {
		used += float64(len(r.running))*r.clock - r.startSum
	}
	if r.prefilling {
		used += float64(r.current.prompt)
	}
	return used
}

// active returns the running requests, the one in prefill included.
func (r *rank) active() int {
	if r.prefilling {
		return len(r.running) + 1
	}
	return len(r.running)
}

// admit takes waiting requests in order for as long as there are slots and KV for them.
func (r *rank) admit() {
	for !r.prefilling && r.waiting.len() > 0 && len(r.running) < r.p.maxRunning {
		head := r.waiting.front()
		if r.used()+float64(head.prompt) > (1-admitReserve)*float64(r.p.maxTokens) {
			return
		}
		r.waiting.popFront()
		r.waitingPrompt -= int64(head.prompt)
		r.waitingUncached -= int64(head.uncached)
		if head.uncached == 0 {
			r.start(head)
			continue
		}
		r.prefilling, r.current, r.left = true, head, float64(head.uncached)
		r.gauge.admitted(head)
	}
}

func (r *rank) start(req request) {
	r.running = append(r.running, running{done: r.clock + float64(req.output), prompt: req.prompt, output: req.output})
	r.held += int64(req.prompt)
	r.startSum += r.clock
	r.up(len(r.running) - 1)
}

// retract sends running requests back to the head of the queue until there is room. They keep what they made, as prompt.
func (r *rank) retract() {
	for len(r.running) > 0 && r.used() > retractTarget*float64(r.p.maxTokens) {
		last := len(r.running) - 1 // a leaf of the heap: one of those with much left to do
		victim := r.running[last]
		r.remove(last)
		made := int32(min(float64(victim.output-1), max(0, math.Floor(r.clock-victim.start()))))
		back := request{prompt: victim.prompt + made, output: victim.output - made}
		if r.p.prefills {
			back.uncached = back.prompt
		}
		r.waiting.pushFront(back)
		r.waitingPrompt += int64(back.prompt)
		r.waitingUncached += int64(back.uncached)
		r.count.retracted++
	}
}

// remove takes running request i out.
func (r *rank) remove(i int) {
	gone := r.running[i]
	last := len(r.running) - 1
	r.running[i] = r.running[last]
	r.running = r.running[:last]
	if i < last {
		r.down(i)
	}
	r.held -= int64(gone.prompt)
	r.startSum -= gone.start()
	if last == 0 {
		// Nothing runs: the clock may start anew, and rounding errors end here.
		r.clock, r.startSum, r.held = 0, 0, 0
	}
}

func (r *rank) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if r.running[parent].done <= r.running[i].done {
			return
		}
		r.running[parent], r.running[i] = r.running[i], r.running[parent]
		i = parent
	}
}

func (r *rank) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(r.running) {
			return
		}
		if right := child + 1; right < len(r.running) && r.running[right].done < r.running[child].done {
			child = right
		}
		if r.running[i].done <= r.running[child].done {
			return
		}
		r.running[i], r.running[child] = r.running[child], r.running[i]
		i = child
	}
}
