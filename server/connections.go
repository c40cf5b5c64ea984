package server

import (
	"net"
	"sync"
	"sync/atomic"

	"github.com/loadmonitor/loadmonitor/load"
)

// boundedListener closes connections beyond a number at once, so that a peer that opens them without end meets a closed
// connection and not an exhausted process (rule LIFE2). Waiting in the accept queue instead would look like a hang.
type boundedListener struct {
	net.Listener
	name     string // in metrics and logs
	max      int64
	episodes *episodes
	ended    func(addr string) // called when a connection has ended, with the address of its peer; nil: nobody asks

	open, refused atomic.Int64
}

func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) > l.max {
			l.open.Add(-1)
			l.refused.Add(1)
			l.episodes.warn("too_many_connections", "connection refused: too many are open", "listener", l.name, "max", l.max)
			_ = c.Close()
			continue
		}
		addr := c.RemoteAddr().String()
		return &boundedConn{Conn: c, release: sync.OnceFunc(func() {
			l.open.Add(-1)
			if l.ended != nil {
				l.ended(addr)
			}
		})}, nil
	}
}

type boundedConn struct {
	net.Conn
	release func()
}

func (c *boundedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

func connectionMetrics(listeners ...*boundedListener) []load.Metric {
	each := func(value func(*boundedListener) int64) func(func(float64, ...load.Label)) {
		return func(yield func(float64, ...load.Label)) {
			for _, l := range listeners {
				yield(float64(value(l)), load.Label{Name: "listener", Value: l.name})
			}
		}
	}
	return []load.Metric{
		{Name: "connections", Help: "Connections that are open.",
			Collect: each(func(l *boundedListener) int64 { return l.open.Load() })},
		{Name: "connections_refused_total", Help: "Connections that were closed at once because too many were open.", Counter: true,
			Collect: each(func(l *boundedListener) int64 { return l.refused.Load() })},
	}
}
