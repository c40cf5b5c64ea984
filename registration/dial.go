package registration

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// nextAddress is how long an address of a name has before the next one is tried beside it.
const nextAddress = 300 * time.Millisecond

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// attempt is a context within which is dialled. It knows whether the host's name is being looked up.
type attempt struct {
	context.Context
	lookingUp atomic.Bool
}

// connect connects to an engine, with TLS where it is to speak it.
func (e *engines) connect(ctx context.Context, w *load.Worker) (net.Conn, error) {
	a := &attempt{Context: ctx}
	c, err := e.dial(a, "tcp", w.Origin)
	if err != nil {
		if a.lookingUp.Load() {
			// A name that was being looked up until the end is the reason, not the engine behind it (case L3).
			err = &net.DNSError{Err: "no answer", IsTimeout: true}
		}
		return nil, err
	}
	if !strings.HasPrefix(w.URL, "https:") {
		return c, nil
	}
	t := tls.Client(c, &tls.Config{ServerName: hostOf(w.Origin)})
	if err := t.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	return t, nil
}

// dialerOf returns how to reach an address, whose host is looked up by resolve; nil: by Go's own resolver, which holds no
// thread for a name that does not answer.
func dialerOf(resolve func(context.Context, string) ([]netip.Addr, error)) dialFunc {
	if resolve == nil {
		resolver := &net.Resolver{PreferGo: true}
		resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return resolver.LookupNetIP(ctx, "ip", host)
		}
	}
	d := new(net.Dialer)
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		if _, err := netip.ParseAddr(host); err == nil {
			return d.DialContext(ctx, network, addr)
		}
		ips, err := lookUp(ctx, host, resolve)
		if err != nil {
			return nil, err
		}
		return race(ctx, ips, func(ctx context.Context, ip netip.Addr) (net.Conn, error) {
			return d.DialContext(ctx, network, net.JoinHostPort(ip.Unmap().String(), port))
		})
	}
}

func lookUp(ctx context.Context, host string, resolve func(context.Context, string) ([]netip.Addr, error)) ([]netip.Addr, error) {
	if a, ok := ctx.(*attempt); ok {
		a.lookingUp.Store(true)
		defer func() { a.lookingUp.Store(ctx.Err() != nil) }()
	}
	ips, err := resolve(ctx, host)
	if err == nil && len(ips) == 0 {
		err = &net.DNSError{Err: "no address", Name: host, IsNotFound: true}
	}
	return ips, err
}

// race dials addresses in their order, the next one when the one before has failed or takes long, and returns the first
// connection. There is at least one address.
func race(ctx context.Context, ips []netip.Addr, dial func(context.Context, netip.Addr) (net.Conn, error)) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	under := 0
	defer func() {
		cancel()
		go func() { // whoever comes second is not needed
			for range under {
				if r := <-results; r.conn != nil {
					r.conn.Close()
				}
			}
		}()
	}()
	next := time.NewTimer(0)
	defer next.Stop()
	var first error
	for {
		select {
		case <-next.C:
			ip := ips[0]
			ips = ips[1:]
			under++
			go func() {
				c, err := dial(ctx, ip)
				results <- result{c, err}
			}()
			if len(ips) > 0 {
				next.Reset(nextAddress)
			}
		case r := <-results:
			under--
			if r.err == nil {
				return r.conn, nil
			}
			if first == nil {
				first = r.err
			}
			if len(ips) > 0 {
				next.Reset(0)
			} else if under == 0 {
				return nil, first
			}
		}
	}
}
