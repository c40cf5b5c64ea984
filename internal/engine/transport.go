package engine

import "github.com/loadmonitor/loadmonitor/reporter/pub"

// Transport is how the engines of a fleet report.
type Transport string

const (
	TransportPush  Transport = "push"  // all stream to the monitors that register
	TransportZMQ   Transport = "zmq"   // all publish, in the forms of payload in turn
	TransportMixed Transport = "mixed" // in turn: push, publish arrays, publish maps
)

const transportList = "push, zmq, mixed"

// voice is how one engine makes its load known: it pushes, or it publishes in a form under a topic.
type voice struct {
	push  bool
	form  pub.Form
	topic string
}

// String returns the word for logs and JSON.
func (v voice) String() string {
	if v.push {
		return "push"
	}
	return v.form.String()
}

// voices are given to the workers of a fleet in turn. Engines leave the topic of the map form empty and advertise none.
var voices = map[Transport][]voice{
	TransportPush:  {{push: true}},
	TransportZMQ:   {{form: pub.LoadStat, topic: "load"}, {form: pub.LoadSnapshot}, {form: pub.LoadStatShort, topic: "load"}},
	TransportMixed: {{push: true}, {form: pub.LoadStat, topic: "load"}, {form: pub.LoadSnapshot}},
}

// voice returns how a worker reports.
func (o *Options) voice(worker int) voice {
	turn := voices[o.Transport]
	return turn[worker%len(turn)]
}

// sockets returns how many load sockets the fleet has.
func (o *Options) sockets() int {
	n := 0
	for i := range o.Workers {
		if !o.voice(i).push {
			n += o.Ranks
		}
	}
	return n
}

// loadPort returns the port of a worker's rank 0 under a base port, 0 without one.
func (o *Options) loadPort(worker int) int {
	if o.BasePort == 0 {
		return 0
	}
	return o.BasePort + o.Workers + worker*o.Ranks
}
