package registration

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
)

// advertise decides which address an engine is told to report to.
type advertise struct {
	listen netip.AddrPort // of the gRPC listener
	ip     netip.Addr     // configured; invalid: not
	port   uint16         // configured; 0: the listener's

	// route returns both ends of the way to an origin.
	route func(ctx context.Context, origin string) (local, remote netip.Addr, err error)
}

// unadvertisedError says why there is no address that an engine could dial, and what to do.
type unadvertisedError struct{ text string }

func (e *unadvertisedError) Error() string { return e.text }

func unadvertisable(format string, args ...any) error {
	return &unadvertisedError{text: fmt.Sprintf(format, args...)}
}

// to returns the address for the engine at origin: the configured one, else the listener's own where it listens at one
// address only, else the local address from which this host reaches that engine. An engine elsewhere is never sent to a
// listener, or told an address, that only this host can reach. over is the connection to it; nil: there is none yet.
func (a advertise) to(ctx context.Context, origin string, over net.Conn) (netip.AddrPort, error) {
	local, remote, err := a.way(ctx, origin, over)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ip := a.ip
	if !ip.IsValid() && !a.listen.Addr().IsUnspecified() {
		ip = a.listen.Addr()
	}
	if !ip.IsValid() {
		ip = local
		if a.listen.Addr().Is4() && ip.Is6() {
			return netip.AddrPort{}, unadvertisable("the gRPC listener %v is IPv4 only and this engine is reached over IPv6: "+
				"listen on [::], or set the advertise address", a.listen)
		}
		if ip.Zone() != "" {
			return netip.AddrPort{}, unadvertisable("this engine is reached from the link-local address %v, which it cannot dial: "+
				"set the advertise address", ip)
		}
	}
	if !remote.IsLoopback() {
		if a.listen.Addr().IsLoopback() {
			return netip.AddrPort{}, unadvertisable("the gRPC listener %v is on loopback and this engine is not: "+
				"listen on an address that the engine can dial", a.listen)
		}
		if ip.IsLoopback() {
			return netip.AddrPort{}, unadvertisable("the advertise address %v is loopback and this engine is not: "+
				"advertise an address that the engine can dial", ip)
		}
	}
	return netip.AddrPortFrom(ip, cmp.Or(a.port, a.listen.Port())), nil
}

// way returns both ends of the way to an origin: those of the connection to it, or of the one that would be made.
func (a advertise) way(ctx context.Context, origin string, over net.Conn) (local, remote netip.Addr, err error) {
	if over != nil {
		from, ok := over.LocalAddr().(*net.TCPAddr)
		to, okToo := over.RemoteAddr().(*net.TCPAddr)
		if ok && okToo {
			return from.AddrPort().Addr().Unmap(), to.AddrPort().Addr().Unmap(), nil
		}
	}
	return a.route(ctx, origin)
}

// routeOver returns a function that asks the kernel which way a packet to origin would take: connecting a UDP socket
// chooses the addresses and sends nothing. The TCP connection of the request takes the same way; where a name has several
// addresses it may end at another of them, and an operator to whom that matters sets the advertise address.
func routeOver(dial dialFunc) func(ctx context.Context, origin string) (local, remote netip.Addr, err error) {
	return func(ctx context.Context, origin string) (local, remote netip.Addr, err error) {
		conn, err := dial(ctx, "udp", origin)
		if err != nil {
			return netip.Addr{}, netip.Addr{}, err
		}
		defer conn.Close()
		from, to := conn.LocalAddr().(*net.UDPAddr), conn.RemoteAddr().(*net.UDPAddr)
		return from.AddrPort().Addr().Unmap(), to.AddrPort().Addr().Unmap(), nil
	}
}
