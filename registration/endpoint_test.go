package registration

import (
	"strings"
	"testing"
)

func TestParseEndpoint(t *testing.T) {
	for _, tt := range []struct{ given, want, refused string }{
		{"10.9.0.5:5559", "10.9.0.5:5559", ""},
		{"tcp://10.9.0.5:5559", "10.9.0.5:5559", ""},
		{"Node-1.Pool.:5559", "node-1.pool:5559", ""},
		{"[2001:DB8:0::5]:5559", "[2001:db8::5]:5559", ""}, // case L1
		{"tcp://[fd00::5]:1", "[fd00::5]:1", ""},
		{"[::ffff:10.9.0.5]:1", "10.9.0.5:1", ""},
		{"127.0.0.1:65535", "127.0.0.1:65535", ""},
		{"fd00::5:5559", "", "has no port"},
		{"[fd00::5]", "", "has no port"},
		{"10.9.0.5", "", "has no port"},
		{"10.9.0.5:", "", "1 to 65535"},
		{"10.9.0.5:0", "", "1 to 65535"},
		{"10.9.0.5:65536", "", "1 to 65535"},
		{"10.9.0.5:http", "", "1 to 65535"},
		{"*:5559", "", "wildcard"}, // case K4
		{"0.0.0.0:5559", "", "wildcard"},
		{"[::]:5559", "", "wildcard"},
		{":5559", "", "wildcard"},
		{"[fe80::1%eth0]:5559", "", "zone"},
		{"224.0.0.1:5559", "", "multicast"},
		{"ipc:///tmp/x", "", "host:port or tcp://host:port"},
		{"http://10.9.0.5:5559", "", "host:port or tcp://host:port"},
		{"user@10.9.0.5:5559", "", "host:port or tcp://host:port"},
		{"127.1:5559", "", "neither"},
		{"a b:5559", "", "host:port"},
		{"", "", "has no port"},
	} {
		e, err := parseEndpoint(tt.given)
		switch {
		case tt.refused == "" && (err != nil || e.String() != tt.want):
			t.Errorf("%q: %v, %v; want %s", tt.given, e, err, tt.want)
		case tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused)):
			t.Errorf("%q: %v, %v; want a refusal that says %q", tt.given, e, err, tt.refused)
		}
	}
}

// Case K4: what an engine binds, and where it is reached.
func TestHostAt(t *testing.T) {
	const v4, v6, name = "10.9.0.5", "2001:db8::5", "w1.pool"
	for _, tt := range []struct{ told, engine, host, why string }{
		{"*", v4, v4, ""}, {"0.0.0.0", v4, v4, ""}, {"::", v4, v4, ""}, {"[::]", v4, v4, ""}, {"", v4, v4, ""},
		{"*", v6, v6, ""}, {"0.0.0.0", v6, v6, ""}, {"::", v6, v6, ""}, {"[::]", v6, v6, ""}, {"", v6, v6, ""},
		{"0:0:0:0:0:0:0:0", v4, v4, ""}, {"::ffff:0.0.0.0", v4, v4, ""}, {"*", name, name, ""}, {"*", "127.0.0.1", "127.0.0.1", ""},
		{"10.9.0.5", v4, "10.9.0.5", ""}, {"10.9.0.5", v6, "10.9.0.5", ""}, {"10.8.0.1", v4, "10.8.0.1", ""},
		{"[2001:DB8:0::6]", v4, "2001:db8::6", ""}, {"2001:db8::6", v6, "2001:db8::6", ""}, {"Node-2.Pool.", v4, "node-2.pool", ""},
		{"127.0.0.1", v4, "", "loopback"}, {"127.0.0.1", v6, "", "loopback"}, {"127.0.0.1", name, "", "loopback"}, {"127.8.8.8", v4, "", "loopback"},
		{"[::1]", v6, "", "loopback"}, {"::1", v4, "", "loopback"}, {"::ffff:127.0.0.1", v4, "", "loopback"}, {"localhost", v4, "", "loopback"},
		{"LOCALHOST.", v4, "", "loopback"}, {"a.localhost", v4, "", "loopback"},
		{"127.0.0.1", "127.0.0.2", "127.0.0.1", ""}, {"127.0.0.1", "::1", "127.0.0.1", ""}, {"127.0.0.1", "localhost", "127.0.0.1", ""},
		{"localhost", "127.0.0.1", "localhost", ""},
		{"127.1", v4, "", "neither an IP address nor a DNS name"}, {"2130706433", v4, "", "neither"}, {"a b", v4, "", "neither"},
		{"tcp://10.9.0.5", v4, "", "neither"}, {"10.9.0.5:5559", v4, "", "neither"}, {"[10.9.0.5", v4, "", "neither"}, {"u@h", v4, "", "neither"},
		{"\x00", v4, "", "neither"}, {"fe80::1%eth0", v4, "", "zone"}, {"224.0.0.1", v4, "", "multicast"},
	} {
		s := loadSockets{host: tt.told}
		host, why := s.hostAt(tt.engine)
		if host != tt.host || (why == "") != (tt.why == "") || !strings.Contains(why, tt.why) {
			t.Errorf("endpoint_host %q of an engine at %s: %q, %q; want %q, %q", tt.told, tt.engine, host, why, tt.host, tt.why)
		}
	}
}

// Case E7: ports that are no load sockets are not dialled, each with its reason.
func TestPortOf(t *testing.T) {
	for _, tt := range []struct {
		name    string
		sockets loadSockets
		want    []string // "5559", or part of the reason
	}{
		{"side by side", loadSockets{base: 5559, count: 2, kvBase: 5557, kvCount: 2}, []string{"5559", "5560", "advertises 2 load sockets"}},
		{"beyond the last port", loadSockets{base: 65533, count: 5}, []string{"65533", "65534", "65535", "65536 is beyond 65535", "65537"}},
		{"the KV events ports", loadSockets{base: 5557, count: 2, kvBase: 5557, kvCount: 2}, []string{"5557 is one of the engine's KV events ports 5557 to 5558", "5558"}},
		{"part of the KV events ports", loadSockets{base: 5556, count: 4, kvBase: 5557, kvCount: 2}, []string{"5556", "KV events", "KV events", "5559"}},
		{"KV events above", loadSockets{base: 5555, count: 2, kvBase: 5557, kvCount: 2}, []string{"5555", "5556"}},
	} {
		for rank, want := range tt.want {
			port, why := tt.sockets.portOf(rank)
			got := why
			if why == "" {
				got = (endpoint{"", port}).String()[1:]
			}
			if !strings.Contains(got, want) || (why == "") == (port == 0) {
				t.Errorf("%s, rank %d: %q, want %q", tt.name, rank, got, want)
			}
		}
	}
}
