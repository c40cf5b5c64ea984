package pub

import (
	"errors"
	"strings"
	"testing"
)

// Case E7 and the engine's port rule.
func TestPorts_Resolve(t *testing.T) {
	for _, tc := range []struct {
		name  string
		ports Ports
		want  Range
		err   error
		names string // in the error
	}{
		{name: "auto packs behind the KV events", ports: Ports{Load: Auto, KVEvents: "tcp://*:5557", Ranks: 2}, want: Range{"*", 5559, 2}},
		{name: "auto keeps the host", ports: Ports{Load: Auto, KVEvents: "tcp://[::]:5557", Ranks: 1}, want: Range{"[::]", 5558, 1}},
		{name: "auto stops before the replay", ports: Ports{Load: Auto, KVEvents: "tcp://0.0.0.0:5557", Replay: "tcp://*:5561", Ranks: 2}, want: Range{"0.0.0.0", 5559, 2}},
		{name: "auto jumps past a replay that begins behind the KV events", ports: Ports{Load: Auto, KVEvents: "tcp://*:5557", Replay: "tcp://*:5559", Ranks: 2}, want: Range{"*", 5561, 2}},
		{name: "auto jumps past a replay in whose middle it would end", ports: Ports{Load: Auto, KVEvents: "tcp://*:5557", Replay: "tcp://*:5564", Ranks: 4}, want: Range{"*", 5568, 4}},
		{name: "auto leaves a replay alone that lies before the KV events", ports: Ports{Load: Auto, KVEvents: "tcp://*:5557", Replay: "tcp://*:5500", Ranks: 4}, want: Range{"*", 5561, 4}},
		{name: "auto ends at the last port", ports: Ports{Load: Auto, KVEvents: "tcp://*:65528", Ranks: 4}, want: Range{"*", 65532, 4}},
		{name: "auto past the last port", ports: Ports{Load: Auto, KVEvents: "tcp://*:65529", Ranks: 4}, err: ErrDeclined, names: "65535"},
		{name: "auto past the last port after the jump", ports: Ports{Load: Auto, KVEvents: "tcp://*:65520", Replay: "tcp://*:65525", Ranks: 5}, want: Range{"*", 65530, 5}},
		{name: "auto jumps past the last port", ports: Ports{Load: Auto, KVEvents: "tcp://*:65520", Replay: "tcp://*:65527", Ranks: 5}, err: ErrDeclined, names: "65532 to 65536"},
		{name: "auto without KV events", ports: Ports{Load: Auto, Ranks: 2}, err: ErrDeclined, names: "tcp://*:5559"},
		{name: "auto with KV events that are not TCP", ports: Ports{Load: Auto, KVEvents: "ipc:///tmp/kv", Ranks: 2}, err: ErrDeclined, names: "no TCP ports"},
		{name: "auto with KV events at a host", ports: Ports{Load: Auto, KVEvents: "tcp://10.0.0.1:5557", Ranks: 2}, err: ErrDeclined, names: "no TCP ports"},
		{name: "auto with a wrong KV port", ports: Ports{Load: Auto, KVEvents: "tcp://*:0", Ranks: 2}, err: ErrDeclined, names: "KV-events"},

		{name: "given", ports: Ports{Load: "tcp://*:6000", Ranks: 8}, want: Range{"*", 6000, 8}},
		{name: "given beside the KV events", ports: Ports{Load: "tcp://*:5559", KVEvents: "tcp://*:5557", Replay: "tcp://*:5561", Ranks: 2}, want: Range{"*", 5559, 2}},
		{name: "given IPv6", ports: Ports{Load: "tcp://[::]:6000", Ranks: 1}, want: Range{"[::]", 6000, 1}},
		{name: "given over KV events at a host", ports: Ports{Load: "tcp://*:5557", KVEvents: "tcp://10.0.0.1:5557", Ranks: 2}, err: ErrEndpoint, names: "KV events"},
		{name: "auto jumps past a replay at a host", ports: Ports{Load: Auto, KVEvents: "tcp://*:5557", Replay: "tcp://10.0.0.1:5560", Ranks: 2}, want: Range{"*", 5562, 2}},
		{name: "given inside the KV events", ports: Ports{Load: "tcp://*:5558", KVEvents: "tcp://*:5557", Ranks: 2}, err: ErrEndpoint, names: "5557 to 5558"},
		{name: "given equal to the KV events", ports: Ports{Load: "tcp://*:5557", KVEvents: "tcp://*:5557", Ranks: 2}, err: ErrEndpoint, names: "KV events"},
		{name: "given ends inside the KV events", ports: Ports{Load: "tcp://0.0.0.0:5556", KVEvents: "tcp://*:5557", Ranks: 2}, err: ErrEndpoint, names: "KV events"},
		{name: "given over the replay", ports: Ports{Load: "tcp://*:5562", Replay: "tcp://*:5559", Ranks: 4}, err: ErrEndpoint, names: "replay, ports 5559 to 5562"},
		{name: "given past the last port", ports: Ports{Load: "tcp://*:65533", Ranks: 8}, err: ErrEndpoint, names: "65533 to 65540"},
		{name: "given up to the last port", ports: Ports{Load: "tcp://*:65528", Ranks: 8}, want: Range{"*", 65528, 8}},
		{name: "given port 0", ports: Ports{Load: "tcp://*:0", Ranks: 1}, err: ErrEndpoint, names: `port "0"`},
		{name: "given any port", ports: Ports{Load: "tcp://*:*", Ranks: 1}, err: ErrEndpoint, names: `port "*"`},
		{name: "given port above 65535", ports: Ports{Load: "tcp://*:65536", Ranks: 1}, err: ErrEndpoint, names: "65536"},
		{name: "given without a port", ports: Ports{Load: "tcp://*", Ranks: 1}, err: ErrEndpoint, names: "HOST:PORT"},
		{name: "given without a host", ports: Ports{Load: "tcp://:6000", Ranks: 1}, err: ErrEndpoint, names: "HOST:PORT"},
		{name: "given with a path", ports: Ports{Load: "tcp://*:6000/x", Ranks: 1}, err: ErrEndpoint, names: "6000/x"},
		{name: "given host that is not bound", ports: Ports{Load: "tcp://127.0.0.1:6000", Ranks: 1}, err: ErrEndpoint, names: "127.0.0.1"},
		{name: "given name", ports: Ports{Load: "tcp://localhost:6000", Ranks: 1}, err: ErrEndpoint, names: "localhost"},
		{name: "given IPv6 loopback", ports: Ports{Load: "tcp://[::1]:6000", Ranks: 1}, err: ErrEndpoint, names: "[::1]"},
		{name: "given other transport", ports: Ports{Load: "ipc:///tmp/load", Ranks: 1}, err: ErrEndpoint, names: "ipc:///tmp/load"},
		{name: "nothing given", ports: Ports{Ranks: 1}, err: ErrEndpoint, names: "want auto"},
		{name: "no ranks", ports: Ports{Load: "tcp://*:6000"}, err: ErrEndpoint, names: "0 DP ranks"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tc.ports.Resolve()
			if got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("%+v, %v; want %+v, %v", got, err, tc.want, tc.err)
			}
			if err != nil && !strings.Contains(err.Error(), tc.names) {
				t.Errorf("%q does not name %q", err, tc.names)
			}
		})
	}
}
