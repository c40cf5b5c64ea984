package registration

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"
)

// nextAddress is how long an address of a name has before the next one is tried beside it.
const nextAddress = 300 * time.Millisecond

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// attempt is what a request and the dial that the transport makes for it know of each other.
type attempt struct {
	context.Context             // of the request
	lookingUp       atomic.Bool // its host's name
}

type attemptKey struct{}

func withAttempt(ctx context.Context) context.Context {
	return context.WithValue(ctx, attemptKey{}, &attempt{Context: ctx})
}

// attemptOf returns the context within which to dial. By itself the transport lets a dial go on after its request has
// ended, so that a worker that swallows packets, or was removed, would keep a socket for minutes.
func attemptOf(ctx context.Context) context.Context {
	if a, ok := ctx.Value(attemptKey{}).(*attempt); ok {
		return a
	}
	return ctx
}

// unanswered says why a request got no answer. A name that was being looked up until the end is the reason, not the
// engine behind it (case L3).
func unanswered(req *http.Request, err error) answer {
	if a, ok := req.Context().Value(attemptKey{}).(*attempt); ok && a.lookingUp.Load() {
		err = &net.DNSError{Err: "no answer", IsTimeout: true}
	}
	return failed(err)
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
