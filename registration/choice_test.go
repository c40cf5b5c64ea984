package registration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/loadmonitor/loadmonitor/load"
)

// told is what is known of an engine that answered with a text.
func told(t *testing.T, info string) known {
	t.Helper()
	f, err := readInfo(info)
	if err != nil {
		t.Fatal(err)
	}
	return known{facts: f, told: true}
}

// shown is a choice in one line: role, transport, expected ranks, models; ranks that are dialled; the others.
func (c *choice) shown() string {
	var dialled, refused []string
	for _, e := range c.dialled().ranks {
		dialled = append(dialled, fmt.Sprintf("%d=%s", e.Rank, endpoint{e.Host, e.Port}))
	}
	for _, r := range c.dialled().refused {
		refused = append(refused, fmt.Sprint(r.rank))
	}
	return fmt.Sprintf("%s %s %d %q; %s; %s", c.worker.Role, c.worker.Transport, c.worker.ExpectedRanks, c.worker.Models,
		strings.Join(dialled, " "), strings.Join(refused, " "))
}

// Rule ID6: what is configured wins, the rest is the engine's word, and the reason is shown.
func TestChoose(t *testing.T) {
	const url = "10.9.0.5:30000"
	role := func(s Spec, r load.Role) Spec { s.Role = r; return s }
	auto := Spec{URL: url}
	push := Spec{URL: url, Transport: load.TransportPush}
	zmq := Spec{URL: url, Transport: load.TransportZMQ}
	listed := Spec{URL: url, LoadEndpoints: []string{"10.9.0.6:1", "tcp://[fd00::7]:2"}}
	both := `{"served_model_name":"m1","disaggregation_mode":"null","dp_size":2,"kv_events":{"endpoint_host":"*","load_endpoint_port_base":5559}}`
	silent := known{silent: true, trouble: "HTTP 404: the engine has no /server_info"}
	for _, tt := range []struct {
		name   string
		spec   Spec
		known  known
		want   string // see shown
		reason string // part of it
		note   string // part of it
	}{
		{"auto, nothing known", auto, known{}, `plain unspecified 0 []; ; `, asking, asking},
		{"auto, refused", auto, known{trouble: "connection refused"}, `plain unspecified 0 []; ; `, asking, asking + ": connection refused"},
		{"auto, no answer to this", auto, silent, `plain push 0 []; ; `, "push: HTTP 404: the engine has no /server_info", ""},
		{"auto, a load port", auto, told(t, both), `plain zmq 2 ["m1"]; 0=10.9.0.5:5559 1=10.9.0.5:5560; `, "zmq: the engine advertises load port 5559", ""},
		{"auto, no load port", auto, told(t, `{"dp_size":4,"disaggregation_mode":"decode","served_model_name":"m1"}`), `decode push 4 []; ; `, "push: the engine advertises no load port", ""},
		{"auto, a wrong load port (case K9)", auto, told(t, block(`,"load_endpoint_port_base":"x"`)), `plain push 2 []; ; `, "push: the engine's load_endpoint_port_base is no whole number", ""},
		{"auto, base 0 (case E7)", auto, told(t, block(`,"load_endpoint_port_base":0`)), `plain push 2 []; ; `, "push: the engine's load_endpoint_port_base is 0: no port", ""},
		{"auto, every port is another's (case E7)", auto, told(t, block(`,"load_endpoint_port_base":5557`)), `plain push 2 []; ; `, "push: load port 5557 is one of the engine's KV events ports 5557 to 5558", ""},
		{"auto, loopback of another machine (case K4)", auto, told(t, block(`,"endpoint_host":"127.0.0.1"`)), `plain push 2 []; ; `, "push: the engine publishes its load on 127.0.0.1, loopback of its own machine", ""},
		{"auto, some ports (case E7)", auto, told(t, block(`,"load_endpoint_port_base":65533,"dp_size":8`)), `plain zmq 8 []; 0=10.9.0.5:65533 1=10.9.0.5:65534 2=10.9.0.5:65535; 3 4 5 6 7`, "zmq: the engine advertises load port 65533", ""},
		{"auto, fewer sockets than ranks (case E2)", auto, told(t, `{"dp_size":4,"kv_events":{"dp_size":2,"load_endpoint_port_base":9}}`), `plain zmq 4 []; 0=10.9.0.5:9 1=10.9.0.5:10; 2 3`, "zmq:", ""},
		{"auto, more sockets than ranks", auto, told(t, `{"dp_size":1,"kv_events":{"dp_size":2,"load_endpoint_port_base":9}}`), `plain zmq 2 []; 0=10.9.0.5:9 1=10.9.0.5:10; `, "zmq:", ""},
		{"auto, no number of ranks", auto, told(t, `{"kv_events":{"load_endpoint_port_base":9}}`), `plain zmq 1 []; 0=10.9.0.5:9; `, "zmq:", ""},
		{"auto, ranks configured", Spec{URL: url, ExpectedRanks: 3}, told(t, both), `plain zmq 3 ["m1"]; 0=10.9.0.5:5559 1=10.9.0.5:5560; 2`, "zmq:", ""},
		{"auto, fewer ranks configured", Spec{URL: url, ExpectedRanks: 1}, told(t, both), `plain zmq 1 ["m1"]; 0=10.9.0.5:5559; `, "zmq:", ""},
		{"auto, another host", auto, told(t, block(`,"endpoint_host":"[fd00::9]"`)), `plain zmq 2 []; 0=[fd00::9]:5559 1=[fd00::9]:5560; `, "zmq:", ""},
		{"auto at IPv6 (case L1)", Spec{URL: "http://[2001:db8:0::5]:30000"}, told(t, both), `plain zmq 2 ["m1"]; 0=[2001:db8::5]:5559 1=[2001:db8::5]:5560; `, "zmq:", ""},
		{"auto at a name", Spec{URL: "w1.pool:30000"}, told(t, both), `plain zmq 2 ["m1"]; 0=w1.pool:5559 1=w1.pool:5560; `, "zmq:", ""},
		{"auto with a role, nothing known", role(auto, load.RoleDecode), known{}, `decode unspecified 0 []; ; `, asking, asking},

		{"push, nothing known", push, known{}, `plain unspecified 0 []; ; `, asking, asking},
		{"push, a load port", push, told(t, both), `plain push 2 []; ; `, "push: configured", ""},
		{"push with a role, nothing known", role(push, load.RolePrefill), known{trouble: "connection refused"}, `prefill push 0 []; ; `, "push: configured", ""},
		{"push, no answer", push, silent, `plain push 0 []; ; `, "push: configured", ""},
		{"push, a strange role (case A4)", push, told(t, `{"disaggregation_mode":"DECODE "}`), `plain push 0 []; ; `, "push: configured", ""},

		{"zmq, no load port", zmq, told(t, `{"dp_size":4}`), `plain zmq 4 []; ; `, "zmq: configured", "the engine advertises no load port"},
		{"zmq, a wrong load port", zmq, told(t, block(`,"load_endpoint_port_base":-1`)), `plain zmq 2 []; ; `, "zmq: configured", "is -1: no port"},
		{"zmq, no answer", zmq, silent, `plain zmq 0 []; ; `, "zmq: configured", "where the engine publishes its load is not known: HTTP 404"},
		{"zmq with a role, nothing known", role(zmq, load.RoleDecode), known{}, `decode zmq 0 []; ; `, "zmq: configured", "where the engine publishes its load is not known"},
		{"zmq, loopback of another machine (case K4)", zmq, told(t, block(`,"endpoint_host":"[::1]"`)), `plain zmq 2 []; ; 0 1`, "zmq: configured", ""},
		{"zmq, a strange role (case A4)", zmq, told(t, block(`},"disaggregation_mode":"DECODE ","x":{`)), `plain zmq 2 []; ; `, "zmq:", "disaggregation_mode is none that this monitor knows"},

		{"listed with a role, nothing known", role(listed, load.RoleRegular), known{}, `plain zmq 2 []; 0=10.9.0.6:1 1=[fd00::7]:2; `, "zmq: load_endpoints are configured", ""},
		{"listed, nothing known", listed, known{}, `plain unspecified 2 []; ; `, asking, asking},
		{"listed, no answer", listed, silent, `plain zmq 2 []; 0=10.9.0.6:1 1=[fd00::7]:2; `, "zmq: load_endpoints are configured", ""},
		{"listed, something else advertised", listed, told(t, block(`,"dp_size":8`)), `plain zmq 2 []; 0=10.9.0.6:1 1=[fd00::7]:2; `, "zmq: load_endpoints are configured", ""},

		{"another role than registered (case A4)", role(auto, load.RoleDecode), told(t, both), `decode zmq 2 ["m1"]; ; `, "zmq:", "the engine is plain and registered as decode"},
		{"another role than registered, listed", role(listed, load.RoleDecode), told(t, both), `decode zmq 2 ["m1"]; ; `, "zmq:", "the engine is plain and registered as decode"},
		{"no role told", role(auto, load.RoleDecode), told(t, `{"kv_events":{"load_endpoint_port_base":9}}`), `decode zmq 1 []; 0=10.9.0.5:9; `, "zmq:", ""},
		{"a registered model", Spec{URL: url, Models: []string{"m1", "m2"}}, told(t, both), `plain zmq 2 ["m1" "m2"]; 0=10.9.0.5:5559 1=10.9.0.5:5560; `, "zmq:", ""},
		{"a registered path", Spec{URL: url, Models: []string{"/m"}}, told(t, `{"served_model_name":"m","model_path":"/m","kv_events":{"load_endpoint_port_base":9}}`), `plain zmq 1 ["/m"]; 0=10.9.0.5:9; `, "zmq:", ""},
		{"another model than registered", Spec{URL: url, Models: []string{"m2"}}, told(t, both), `plain zmq 2 ["m2"]; ; `, "zmq:", `the engine serves model "m1" and "m2" is registered`},
		{"no model told", Spec{URL: url, Models: []string{"m2"}}, told(t, `{"kv_events":{"load_endpoint_port_base":9}}`), `plain zmq 1 ["m2"]; 0=10.9.0.5:9; `, "zmq:", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := choose(described(t, SourceConfig, tt.spec), tt.known, &Options{Dialer: newSink()})
			if got := c.shown(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if !strings.HasPrefix(c.worker.TransportReason, tt.reason) || c.worker.TransportReason == "" {
				t.Errorf("reason %q, want %q", c.worker.TransportReason, tt.reason)
			}
			if !strings.Contains(c.note, tt.note) || (c.note == "") != (tt.note == "") {
				t.Errorf("note %q, want %q", c.note, tt.note)
			}
			for _, r := range c.dialled().refused {
				if r.why == "" {
					t.Errorf("rank %d is not dialled for no reason", r.rank)
				}
			}
		})
	}
}

func TestChoose_WithoutADialerEverybodyPushes(t *testing.T) {
	c := choose(described(t, SourceConfig, Spec{URL: "10.9.0.5:1"}), told(t, block("")), &Options{})
	if c.worker.Transport != load.TransportPush || c.worker.TransportReason != "push: this monitor takes no load over ZMQ" {
		t.Errorf("%+v", c.worker)
	}
}

func TestChoose_WhatToAccept(t *testing.T) {
	key := strings.Repeat("k", 40)
	for _, tt := range []struct {
		name  string
		spec  Spec
		known known
		want  RankEndpoint
	}{
		{"advertised topic", Spec{URL: "10.9.0.5:1"}, told(t, block("")), RankEndpoint{Host: "10.9.0.5", Port: 5559, Topic: "load", TopicKnown: true}},
		{"no topic", Spec{URL: "10.9.0.5:1"}, told(t, block(`,"load_topic":null`)), RankEndpoint{Host: "10.9.0.5", Port: 5559}},
		{"configured topic and key", Spec{URL: "10.9.0.5:1", LoadTopic: "mine", CurveServerKey: key}, told(t, block("")),
			RankEndpoint{Host: "10.9.0.5", Port: 5559, Topic: "mine", TopicKnown: true, ServerKey: key}},
		{"listed", Spec{URL: "10.9.0.5:1", LoadEndpoints: []string{"h:7"}}, told(t, block("")),
			RankEndpoint{Host: "h", Port: 7, Topic: "load", TopicKnown: true, Trusted: true}},
		{"listed, silent engine", Spec{URL: "10.9.0.5:1", LoadEndpoints: []string{"h:7"}}, known{silent: true}, RankEndpoint{Host: "h", Port: 7, Trusted: true}},
		{"another engine", Spec{URL: "10.9.0.5:1"}, known{facts: told(t, block("")).facts, told: true, generation: 3},
			RankEndpoint{Host: "10.9.0.5", Port: 5559, Topic: "load", TopicKnown: true, Generation: 3}},
	} {
		c := choose(described(t, SourceConfig, tt.spec), tt.known, &Options{Dialer: newSink()})
		tt.want.WorkerID = "10.9.0.5:1"
		if len(c.dialled().ranks) == 0 || c.dialled().ranks[0] != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, c.dialled().ranks, tt.want)
		}
	}
}

// Case E7: two engines with one load socket are told apart by nobody, so neither is dialled there; a socket that somebody
// wrote down is taken at his word.
func TestDialled_OneSocketFeedsOneWorker(t *testing.T) {
	at := func(id string, trusted bool, ports ...int) *choice {
		c := &choice{worker: load.Worker{ID: id}, dialling: &dialling{}}
		for rank, port := range ports {
			c.dialling.ranks = append(c.dialling.ranks, RankEndpoint{WorkerID: id, Rank: int32(rank), Host: "h", Port: port, Trusted: trusted})
		}
		return c
	}
	for _, tt := range []struct {
		name    string
		choices []*choice
		dialled string
		refused string
	}{
		{"apart", []*choice{at("a", false, 1, 2), at("b", false, 3, 4)}, "a0 a1 b0 b1", ""},
		{"overlapping", []*choice{at("a", false, 1, 2), at("b", false, 2, 3)}, "a0 b1", "a1 b0"},
		{"three of one", []*choice{at("a", false, 1), at("b", false, 1), at("c", false, 1)}, "", "a0 b0 c0"},
		{"listed before advertised", []*choice{at("a", false, 1), at("b", true, 1), at("c", false, 1)}, "b0", "a0 c0"},
		{"listed first", []*choice{at("a", true, 1), at("b", false, 1)}, "a0", "b0"},
		{"listed twice", []*choice{at("a", true, 1), at("b", true, 1)}, "", "a0 b0"},
	} {
		ends, refused := dialled(tt.choices)
		var got, others []string
		for _, e := range ends {
			got = append(got, fmt.Sprint(e.WorkerID, e.Rank))
		}
		for key, why := range refused {
			others = append(others, fmt.Sprint(key.worker, key.rank))
			if !strings.Contains(why, "have the same load socket h:") {
				t.Errorf("%s: %v because %q", tt.name, key, why)
			}
		}
		slices.Sort(others)
		if strings.Join(got, " ") != tt.dialled || strings.Join(others, " ") != tt.refused {
			t.Errorf("%s: dialled %q, not %q; want %q, %q", tt.name, got, others, tt.dialled, tt.refused)
		}
	}
}
