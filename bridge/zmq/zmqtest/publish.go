package zmqtest

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	zmq4 "github.com/pebbe/zmq4"
)

// Publisher is one PUB socket that sends as an engine does. It must be used by one goroutine at a time.
type Publisher struct {
	context  *zmq4.Context
	socket   *zmq4.Socket
	endpoint string
}

// NewPublisher binds to an endpoint such as tcp://127.0.0.1:* with the small send mark of an engine.
func NewPublisher(context *zmq4.Context, endpoint string) (*Publisher, error) {
	s, err := context.NewSocket(zmq4.PUB)
	if err != nil {
		return nil, fmt.Errorf("publisher: %w", err)
	}
	p := &Publisher{context: context, socket: s}
	for _, err := range []error{s.SetSndhwm(8), s.SetLinger(0), s.SetIpv6(strings.Contains(endpoint, "[")), s.Bind(endpoint)} {
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("publisher at %s: %w", endpoint, err)
		}
	}
	if p.endpoint, err = s.GetLastEndpoint(); err != nil {
		s.Close()
		return nil, fmt.Errorf("publisher at %s: %w", endpoint, err)
	}
	return p, nil
}

// Endpoint is where it is bound.
func (p *Publisher) Endpoint() string { return p.endpoint }

// Send publishes one message.
func (p *Publisher) Send(topic string, sequence int64, payload []byte) error {
	return p.SendFrames([]byte(topic), binary.BigEndian.AppendUint64(nil, uint64(sequence)), payload)
}

// SendFrames publishes one message of any frames.
func (p *Publisher) SendFrames(frames ...[]byte) error {
	for i, f := range frames {
		flag := zmq4.SNDMORE
		if i == len(frames)-1 {
			flag = 0
		}
		if _, err := p.socket.SendBytes(f, flag); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	return nil
}

// Close ends it and all its connections.
func (p *Publisher) Close() error { return p.socket.Close() }

// LoadStat is an array payload with all five appended figures.
func LoadStat(running, waiting, tokens, capacity, rank int64) []byte {
	b := append([]byte{0x9b}, "\xa8LoadStat"...)
	for _, v := range []int64{running, waiting, tokens, capacity, rank, 600, 1400, 256, 900000, 12500000} {
		b = append(b, 0xcf)
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	return b
}

// Fleet is a set of publishers that each send at a steady rate, spread in phase.
type Fleet struct {
	context    *zmq4.Context
	publishers []*Publisher
}

// NewFleet binds n publishers to free ports of 127.0.0.1.
func NewFleet(n int) (*Fleet, error) {
	c, err := zmq4.NewContext()
	if err != nil {
		return nil, err
	}
	if err := c.SetMaxSockets(n + 16); err != nil {
		return nil, err
	}
	f := &Fleet{context: c}
	for range n {
		p, err := NewPublisher(c, "tcp://127.0.0.1:*")
		if err != nil {
			f.Close()
			return nil, err
		}
		f.publishers = append(f.publishers, p)
	}
	return f, nil
}

// Endpoints are where they are bound.
func (f *Fleet) Endpoints() []string {
	e := make([]string, len(f.publishers))
	for i, p := range f.publishers {
		e[i] = p.endpoint
	}
	return e
}

// Publish sends from every publisher hz times a second until stop is closed. Each message tells its own number as the
// running requests.
func (f *Fleet) Publish(hz float64, stop <-chan struct{}) error {
	const tick = time.Millisecond
	t := time.NewTicker(tick)
	defer t.Stop()
	begin, sent := time.Now(), 0
	for {
		select {
		case <-stop:
			return nil
		case <-t.C:
		}
		for due := int(time.Since(begin).Seconds() * hz * float64(len(f.publishers))); sent < due; sent++ {
			i := sent % len(f.publishers)
			n := int64(sent / len(f.publishers))
			if err := f.publishers[i].Send("load", n, LoadStat(n, 3, 1024, 8192, int64(i%8))); err != nil {
				return err
			}
		}
	}
}

// Close ends all publishers.
func (f *Fleet) Close() {
	for _, p := range f.publishers {
		p.Close()
	}
	f.context.Term()
}
