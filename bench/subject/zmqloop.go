package subject

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/loadmonitor/loadmonitor/bridge/zmq"
	"github.com/loadmonitor/loadmonitor/bridge/zmq/zmqtest"
)

// zmqLoop is the least that a program can do to receive from as many sockets and decode what comes. It measures by itself,
// once: before it has, its stats are zero.
type zmqLoop struct {
	delays
	c     Config
	usage atomic.Pointer[zmqtest.Usage]
}

func (z *zmqLoop) run(ctx context.Context, ready func(addr string)) error {
	ready("")
	decoder, decoded, failed := zmq.NewDecoder(), zmq.Decoded{}, 0
	u, err := zmqtest.BareReceive(z.c.Endpoints, time.Duration(z.c.WarmMs)*time.Millisecond, time.Duration(z.c.WindowMs)*time.Millisecond,
		func(payload []byte) {
			if decoder.Payload(payload, &decoded) != nil {
				failed++
			}
		})
	if err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d messages could not be decoded", failed)
	}
	z.usage.Store(&u)
	<-ctx.Done()
	return nil
}

func (z *zmqLoop) count(s *Stats) {
	s.CPU, s.Wall = 0, 0
	if u := z.usage.Load(); u != nil {
		s.Messages, s.CPU, s.Wall = uint64(u.Messages), u.CPU, u.Wall
	}
}

// publishers are the engines' side.
type publishers struct {
	delays
	c Config
}

func (p *publishers) run(ctx context.Context, ready func(addr string)) error {
	fleet, err := zmqtest.NewFleet(p.c.Workers * p.c.Ranks)
	if err != nil {
		return err
	}
	defer fleet.Close()
	ready(strings.Join(fleet.Endpoints(), " "))
	if p.c.SilentAfterMs > 0 {
		loud, cancel := context.WithTimeout(ctx, time.Duration(p.c.SilentAfterMs)*time.Millisecond)
		defer cancel()
		err := fleet.Publish(p.c.Rate, loud.Done())
		<-ctx.Done()
		return err
	}
	return fleet.Publish(p.c.Rate, ctx.Done())
}

func (*publishers) count(*Stats) {}
