package server

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// insecureFlag is the flag behind Options.AllowInsecure, for the remedy in errors.
const insecureFlag = "--allow-insecure-listen"

// ListenGRPC opens the listener for Options.GRPCListener before there is a Server: for whoever must know the address
// first. addr and allowInsecure are as in Options.
func ListenGRPC(ctx context.Context, addr string, allowInsecure bool) (net.Listener, error) {
	return listen(ctx, "gRPC", addr, DefaultGRPCAddr, allowInsecure)
}

// ListenHTTP opens the listener for Options.HTTPListener; see ListenGRPC.
func ListenHTTP(ctx context.Context, addr string, allowInsecure bool) (net.Listener, error) {
	return listen(ctx, "HTTP", addr, DefaultHTTPAddr, allowInsecure)
}

// CheckGRPC returns the error with which ListenGRPC refuses an address, without opening it. Whether the port can be had is
// not known before.
func CheckGRPC(ctx context.Context, addr string, allowInsecure bool) error {
	_, err := listenTarget(ctx, "gRPC", addr, DefaultGRPCAddr, allowInsecure)
	return err
}

// CheckHTTP is CheckGRPC for ListenHTTP.
func CheckHTTP(ctx context.Context, addr string, allowInsecure bool) error {
	_, err := listenTarget(ctx, "HTTP", addr, DefaultHTTPAddr, allowInsecure)
	return err
}

// listen opens a TCP listener at an address that listenTarget permits.
func listen(ctx context.Context, name, addr, def string, insecure bool) (net.Listener, error) {
	target, err := listenTarget(ctx, name, addr, def, insecure)
	if err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", target)
	if err != nil {
		return nil, fmt.Errorf("%s address %q: %w", name, addr, err)
	}
	return l, nil
}

// listenTarget returns host:port to listen on. addr is host:port, [v6]:port, host, v6 or :port; what is missing comes from
// def, and an empty host means every address. Anything but loopback is refused unless insecure is set (rule LIFE5).
func listenTarget(ctx context.Context, name, addr, def string, insecure bool) (string, error) {
	host, port, err := splitListen(addr, def)
	if err == nil {
		_, err = net.DefaultResolver.LookupPort(ctx, "tcp", port)
	}
	if err == nil && !insecure {
		host, err = loopback(ctx, host) // what was checked is listened on, not what a second look-up would say
	}
	if err != nil {
		return "", fmt.Errorf("%s address %q: %w", name, addr, err)
	}
	return net.JoinHostPort(host, port), nil
}

// splitListen returns host and port of a listen address. A bare IPv6 address may stand without brackets.
func splitListen(addr, def string) (host, port string, err error) {
	_, defPort, err := net.SplitHostPort(def)
	if err != nil {
		return "", "", err
	}
	bare := addr
	if inner, ok := strings.CutPrefix(addr, "["); ok && strings.HasSuffix(inner, "]") {
		bare = strings.TrimSuffix(inner, "]")
	}
	if ip, err := netip.ParseAddr(bare); err == nil {
		return ip.String(), defPort, nil
	}
	if !strings.Contains(addr, ":") {
		return addr, defPort, nil
	}
	if host, port, err = net.SplitHostPort(addr); err != nil {
		return "", "", fmt.Errorf("want host:port or [IPv6 address]:port: %w", err)
	}
	return host, orDefault(port, defPort), nil
}

// loopback returns an address of host, every one of which must be loopback.
func loopback(ctx context.Context, host string) (string, error) {
	refuse := func(what string) error {
		return fmt.Errorf("%s is not loopback, and the listener has neither TLS nor tokens: use a loopback address, or %s where the network is trusted", what, insecureFlag)
	}
	if host == "" {
		return "", refuse("every address")
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if !ip.Unmap().IsLoopback() {
			return "", refuse(host)
		}
		return host, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return "", err
	}
	for _, ip := range ips {
		if !ip.Unmap().IsLoopback() {
			return "", refuse(fmt.Sprintf("%s (%s)", host, ip.Unmap()))
		}
	}
	return ips[0].Unmap().String(), nil
}
