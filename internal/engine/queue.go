package engine

// request is one request in a rank. Sizes are tokens.
type request struct {
	prompt   int32 // context to hold, cached prefix included
	uncached int32 // of it, what prefill must compute
	output   int32 // tokens still to make
}

// queue is a double-ended queue of requests. The zero value is empty.
type queue struct {
	ring []request // length is 0 or a power of two
	head int
	n    int
}

func (q *queue) len() int { return q.n }

func (q *queue) front() request { return q.ring[q.head] }

func (q *queue) pushBack(r request) {
	q.grow()
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = r
	q.n++
}

func (q *queue) pushFront(r request) {
	q.grow()
	q.head = (q.head - 1) & (len(q.ring) - 1)
	q.ring[q.head] = r
	q.n++
}

func (q *queue) popFront() request {
	r := q.ring[q.head]
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	return r
}

func (q *queue) grow() {
	if q.n < len(q.ring) {
		return
	}
	ring := make([]request, max(8, 2*len(q.ring)))
	for i := range q.n {
		ring[i] = q.ring[(q.head+i)&(len(q.ring)-1)]
	}
	q.ring, q.head = ring, 0
}
