package registration

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/loadmonitor/loadmonitor/load"
)

// endpoint is a load socket: a host, IPv6 without brackets, and a port.
type endpoint struct {
	host string
	port int
}

func (e endpoint) String() string {
	if strings.Contains(e.host, ":") {
		return "[" + e.host + "]:" + strconv.Itoa(e.port)
	}
	return e.host + ":" + strconv.Itoa(e.port)
}

// parseEndpoint reads an entry of load_endpoints: host:port or tcp://host:port. The host is one that can be dialled.
func parseEndpoint(s string) (endpoint, error) {
	rest := strings.TrimPrefix(s, "tcp://")
	if strings.ContainsAny(rest, "/@?# ") {
		return endpoint{}, fmt.Errorf("load_endpoints %q: want host:port or tcp://host:port", clipped(s))
	}
	colon := strings.LastIndexByte(rest, ':')
	if colon < 0 || strings.HasSuffix(rest, "]") || strings.Count(rest, ":") > 1 && !strings.HasPrefix(rest, "[") {
		return endpoint{}, fmt.Errorf("load_endpoints %q has no port: want host:port, an IPv6 address in brackets", clipped(s))
	}
	port, err := strconv.ParseUint(rest[colon+1:], 10, 16)
	if err != nil || port == 0 {
		return endpoint{}, fmt.Errorf("load_endpoints %q: want a port from 1 to 65535", clipped(s))
	}
	host, err := parseHost(rest[:colon])
	if err != nil {
		return endpoint{}, fmt.Errorf("load_endpoints %q: %w", clipped(s), err)
	}
	if isWildcard(host) {
		return endpoint{}, fmt.Errorf("load_endpoints %q: a wildcard cannot be dialled, name the rank's own host", clipped(s))
	}
	return endpoint{host, int(port)}, nil
}

// parseHost brings a host to its one spelling, brackets dropped. "*" and the empty host pass; see isWildcard.
func parseHost(s string) (string, error) {
	if s == "" || s == "*" {
		return s, nil
	}
	bare := s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		bare = s[1 : len(s)-1]
	}
	if ip, err := netip.ParseAddr(bare); err == nil {
		switch ip = ip.Unmap(); {
		case ip.Zone() != "":
			return "", fmt.Errorf("address %s has a zone, which means something on its own host only", ip)
		case ip.IsMulticast():
			return "", fmt.Errorf("%s is a multicast address", ip)
		}
		return ip.String(), nil
	}
	const neither = "the host is neither an IP address nor a DNS name"
	if strings.ContainsAny(s, ":/@?#[]") {
		return "", fmt.Errorf("%s", neither)
	}
	_, origin, err := load.ParseAddress("http://" + s + ":1")
	if err != nil {
		return "", fmt.Errorf("%s", neither)
	}
	host := hostOf(origin)
	if last := host[strings.LastIndexByte(host, '.')+1:]; strings.Trim(last, "0123456789") == "" {
		// Some resolvers take 127.1 for an address, loopback here.
		return "", fmt.Errorf("%s", neither)
	}
	return host, nil
}

// isWildcard reports whether a host of parseHost stands for every address of its machine.
func isWildcard(host string) bool {
	if host == "" || host == "*" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}

// isLoopback reports whether a host of parseHost is the machine that says it. Other names are not looked up: what they
// stand for may change.
func isLoopback(host string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().IsLoopback()
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// hostAt returns where to dial the load sockets of the engine whose URL has the given host, or why that cannot be done
// (case K4). A wildcard is what the engine binds: it is reached where the engine itself is. Loopback of another machine
// would be loopback of this one.
func (s *loadSockets) hostAt(engine string) (host, why string) {
	host, err := parseHost(s.host)
	switch {
	case err != nil:
		return "", fmt.Sprintf("the engine's endpoint_host cannot be dialled: %v", err)
	case isWildcard(host):
		return engine, ""
	case isLoopback(host) && !isLoopback(engine):
		return "", fmt.Sprintf("the engine publishes its load on %s, loopback of its own machine: let it bind an address that "+
			"this monitor reaches, or configure load_endpoints", host)
	}
	return host, ""
}

// portOf returns the port of a rank, or why there is none (case E7).
func (s *loadSockets) portOf(rank int) (port int, why string) {
	port = s.base + rank
	switch {
	case rank >= s.count:
		return 0, fmt.Sprintf("the engine advertises %d load sockets", s.count)
	case port > 65535:
		return 0, fmt.Sprintf("load port %d is beyond 65535: start the engine with a lower load port", port)
	case s.kvBase > 0 && port >= s.kvBase && port < s.kvBase+s.kvCount:
		return 0, fmt.Sprintf("load port %d is one of the engine's KV events ports %d to %d: start the engine with "+
			"another load port", port, s.kvBase, s.kvBase+s.kvCount-1)
	}
	return port, ""
}
