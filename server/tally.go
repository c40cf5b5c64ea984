package server

import (
	"sync/atomic"

	"github.com/loadmonitor/loadmonitor/load"
)

// tally counts occurrences by reason. The reasons are fixed, so that each can be seen before it first happens and none
// comes from the wire (rule LIFE4).
type tally struct {
	reasons []string
	counts  map[string]*atomic.Int64
}

// newTally counts the reasons and "other".
func newTally(reasons ...string) *tally {
	t := &tally{reasons: append(reasons, "other"), counts: make(map[string]*atomic.Int64)}
	for _, r := range t.reasons {
		t.counts[r] = new(atomic.Int64)
	}
	return t
}

// streamEnds returns every reason for which a report stream may end, in the order of load.Refusals.
func streamEnds() []string {
	var reasons []string
	for _, r := range load.Refusals() {
		if r.Of != load.OfRequest && endsStream(r) {
			reasons = append(reasons, r.Label)
		}
	}
	for _, e := range []*ending{errUndecodable, errHalfClosed, errNoFirstReport, errDeadline, errTooLarge, errGone} {
		reasons = append(reasons, e.label)
	}
	return reasons
}

func (t *tally) add(reason string) {
	c, ok := t.counts[reason]
	if !ok {
		c = t.counts["other"]
	}
	c.Add(1)
}

// metric offers the counts as a counter with the label reason.
func (t *tally) metric(name, help string) load.Metric {
	return load.Metric{Name: name, Help: help, Counter: true, Collect: func(yield func(float64, ...load.Label)) {
		for _, r := range t.reasons {
			yield(float64(t.counts[r].Load()), load.Label{Name: "reason", Value: r})
		}
	}}
}

// gauge offers one value without labels.
func gauge(name, help string, value func() float64) load.Metric {
	return load.Metric{Name: name, Help: help, Collect: func(yield func(float64, ...load.Label)) { yield(value()) }}
}
