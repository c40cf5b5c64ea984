package registration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/loadmonitor/loadmonitor/load"
)

func readInfo(text string) (facts, error) {
	return readServerInfo(strings.NewReader(text), DefaultMaxRanks)
}

// block returns a /server_info with two ranks, whose kv_events has further fields, each before the others of its name.
func block(fields string) string {
	return `{"dp_size":2,"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv","block_size":64,` +
		`"dp_size":2,"load_endpoint_port_base":5559,"load_topic":"load"` + fields + `}}`
}

func TestServerInfo_KeepsWhatIsNamed(t *testing.T) {
	got, err := readInfo(`{"version":"0.5.19","served_model_name":"m1","model_path":"/models/m1","disaggregation_mode":"decode",
		"dp_size":2,"internal_states":[{"dp_size":9,"kv_events":null},[[]],"x"],"api_key":"sentinel-1","kv_events":{"publisher":"zmq",
		"endpoint_host":"*","endpoint_port_base":5557,"topic":"kv","block_size":64,"dp_size":2,"load_endpoint_port_base":5559,
		"load_topic":"load","nested":{"load_endpoint_port_base":1}},"admin_api_key":"sentinel-2"}` + "\n ")
	if err != nil {
		t.Fatal(err)
	}
	want := facts{served: "m1", path: "/models/m1", mode: load.RoleDecode, ranks: 2, load: loadSockets{
		told: true, host: "*", base: 5559, count: 2, topic: "load", topicKnown: true, kvBase: 5557, kvCount: 2,
	}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(facts{}, loadSockets{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Cases K9 and E7: numbers as engines of other versions write them.
func TestServerInfo_LoadPort(t *testing.T) {
	for _, tt := range []struct {
		value string
		base  int    // 0: none
		wrong string // why not; empty: it is not advertised
	}{
		{`5600`, 5600, ""},
		{`"5600"`, 5600, ""},
		{`5600.0`, 5600, ""},
		{`56e2`, 5600, ""},
		{`65535`, 65535, ""},
		{`null`, 0, ""},
		{`0`, 0, "is 0: no port"},
		{`-1`, 0, "is -1: no port"},
		{`70000`, 0, "is 70000: no port"},
		{`"70000"`, 0, "is 70000: no port"},
		{`5600.5`, 0, "no whole number"},
		{`1e400`, 0, "no whole number"},
		{`99999999999999999999`, 0, "no whole number"},
		{`""`, 0, "no whole number"},
		{`" 5600"`, 0, "no whole number"},
		{`"+5600"`, 0, "no whole number"},
		{`"5600.0"`, 0, "no whole number"},
		{`"0x15E0"`, 0, "no whole number"},
		{`true`, 0, "no whole number"},
		{`[5600]`, 0, "no whole number"},
		{`{"port":5600}`, 0, "no whole number"},
	} {
		f, err := readInfo(block(`,"load_endpoint_port_base":` + tt.value))
		s := f.load
		if err != nil || s.told != (tt.base != 0) || s.base != tt.base || (s.wrong == "") != (tt.wrong == "") || !strings.Contains(s.wrong, tt.wrong) {
			t.Errorf("%s: %+v, %v; want base %d, %q", tt.value, s, err, tt.base, tt.wrong)
		}
		if f.ranks != 2 {
			t.Errorf("%s: %d ranks, want what the engine says elsewhere", tt.value, f.ranks)
		}
	}
}

// Case K9: how many ranks and how many sockets there are.
func TestServerInfo_DPSize(t *testing.T) {
	const absent = "absent"
	for _, tt := range []struct {
		engine, block string
		ranks, count  int
		wrong         string
	}{
		{"2", "2", 2, 2, ""},
		{"8", "4", 8, 4, ""},
		{"4", absent, 4, 4, ""},
		{`"4"`, absent, 4, 4, ""},
		{absent, "4", 0, 4, ""},
		{absent, `"4"`, 0, 4, ""},
		{absent, absent, 0, 1, ""},
		{"null", "null", 0, 1, ""},
		{"0", absent, 0, 0, "dp_size is 0: want 1 to 1024"},
		{"2", "0", 2, 0, "dp_size is 0"},
		{"2", "-1", 2, 0, "dp_size is -1"},
		{"2", "1025", 2, 0, "dp_size is 1025"},
		{"1025", "2", 0, 2, ""},
		{`"x"`, absent, 0, 0, "dp_size is no whole number"},
		{`"x"`, "2", 0, 2, ""},
		{"2", "{}", 2, 0, "dp_size is no whole number"},
		{"1.5", "2", 0, 2, ""},
	} {
		text := `{"kv_events":{"load_endpoint_port_base":5559`
		if tt.block != absent {
			text += `,"dp_size":` + tt.block
		}
		text += "}"
		if tt.engine != absent {
			text += `,"dp_size":` + tt.engine
		}
		f, err := readInfo(text + "}")
		if err != nil || f.ranks != tt.ranks || f.load.count != tt.count || (f.load.wrong == "") != (tt.wrong == "") || !strings.Contains(f.load.wrong, tt.wrong) {
			t.Errorf("engine %s, block %s: %+v, %v; want %d ranks, %d sockets, %q", tt.engine, tt.block, f, err, tt.ranks, tt.count, tt.wrong)
		}
	}
}

// Case K9: a block that says nothing, or nonsense, leaves an engine without load sockets and with the reason.
func TestServerInfo_Block(t *testing.T) {
	for _, tt := range []struct{ name, text, wrong string }{
		{"no block", `{"dp_size":2}`, ""},
		{"null", `{"kv_events":null}`, ""},
		{"no load port", `{"kv_events":{"endpoint_port_base":5557}}`, ""},
		{"a list", `{"kv_events":[{"load_endpoint_port_base":5559}]}`, "kv_events is no object"},
		{"a text", `{"kv_events":"load_endpoint_port_base=5559"}`, "kv_events is no object"},
		{"another publisher", block(`,"publisher":"kafka"`), "another publisher"},
		{"a publisher that is no text", block(`,"publisher":7`), "another publisher"},
		{"a host that is no text", block(`,"endpoint_host":7`), "endpoint_host is no text"},
		{"a topic that is no text", block(`,"load_topic":["load"]`), "load_topic is no text"},
		{"a long topic", block(`,"load_topic":"` + strings.Repeat("x", 256) + `"`), "load_topic has 256 bytes"},
		{"a later block counts", `{"kv_events":{"load_endpoint_port_base":5559},"kv_events":null}`, ""},
	} {
		f, err := readInfo(tt.text)
		if err != nil || f.load.told || (f.load.wrong == "") != (tt.wrong == "") || !strings.Contains(f.load.wrong, tt.wrong) {
			t.Errorf("%s: %+v, %v; want none because %q", tt.name, f.load, err, tt.wrong)
		}
	}
}

func TestServerInfo_Topic(t *testing.T) {
	for _, tt := range []struct {
		fields, topic string
		known         bool
	}{
		{``, "load", true}, {`,"load_topic":"l2"`, "l2", true}, {`,"load_topic":""`, "", true}, {`,"load_topic":null`, "", false},
	} {
		f, err := readInfo(block(tt.fields))
		if err != nil || f.load.topic != tt.topic || f.load.topicKnown != tt.known {
			t.Errorf("%s: %+v, %v", tt.fields, f.load, err)
		}
	}
}

func TestServerInfo_RoleAndModel(t *testing.T) {
	for _, tt := range []struct {
		text    string
		mode    load.Role
		strange bool
		model   string
	}{
		{`{}`, load.RoleUnspecified, false, ""},
		{`{"disaggregation_mode":"null","served_model_name":"m","model_path":"p"}`, load.RoleRegular, false, "m"},
		{`{"disaggregation_mode":null,"served_model_name":null,"model_path":"p"}`, load.RoleUnspecified, false, "p"},
		{`{"disaggregation_mode":"prefill","served_model_name":["m"]}`, load.RolePrefill, false, ""},
		{`{"disaggregation_mode":"decode","served_model_name":""}`, load.RoleDecode, false, ""},
		{`{"disaggregation_mode":"DECODE "}`, load.RoleUnspecified, true, ""}, // case A4
		{`{"disaggregation_mode":""}`, load.RoleUnspecified, true, ""},
		{`{"disaggregation_mode":2}`, load.RoleUnspecified, true, ""},
		{`{"model_path":"` + strings.Repeat("é", 200) + `"}`, load.RoleUnspecified, false, strings.Repeat("é", 128)},
		{`{"served_model_name":"` + "\xff" + `"}`, load.RoleUnspecified, false, "\ufffd"},
	} {
		f, err := readInfo(tt.text)
		if err != nil || f.mode != tt.mode || f.strangeMode != tt.strange || f.model() != tt.model {
			t.Errorf("%s: %+v, %v", tt.text, f, err)
		}
	}
}

// What is no object, or is not whole, says nothing at all: a half answer must not take known ranks away.
func TestServerInfo_NotAnObject(t *testing.T) {
	for _, text := range []string{
		"", " ", "<html><body>502</body></html>", "null", "true", "5", `"{}"`, "[]", `[{"dp_size":2}]`, "{", `{"dp_size"`, `{"dp_size":`,
		`{"dp_size":2`, `{"dp_size":2,`, `{"dp_size":2,}`, `{"dp_size":02}`, `{dp_size:2}`, `{"dp_size":2}}`, `{"dp_size":2}{}`, `{"dp_size":2} x`,
		`{"a":[1,}`, `{"a":[1}]}`, `{"a" 1}`, `{"a":1 "b":2}`, `{"a":,}`, `{,}`, `{"dp_size":+2}`, `{"dp_size":0x2}`, `{"kv_events":{"load_endpoint_port_base":5559}`, `{"model_path":"` + "\n" + `"}`, `{"model_path":"\x"}`, `{"` + "\n" + `":1}`, `{"a":nul}`,
		`{"a":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "}", "{" + strings.Repeat("[", 1<<20),
	} {
		if f, err := readInfo(text); !errors.Is(err, errNoObject) || f != (facts{}) {
			t.Errorf("%.40q: %+v, %v; want errNoObject", text, f, err)
		}
	}
}

// Case N1: the parser's own words quote the text, so they do not leave it.
func TestServerInfo_ErrorsQuoteNothing(t *testing.T) {
	for _, text := range []string{`{"api_key":sentinel-1}`, `{"api_key":"sentinel-1` + "\x01" + `"}`, `sentinel-1`, `{"a":1}sentinel-1`} {
		if _, err := readInfo(text); err == nil || strings.Contains(err.Error(), "sentinel") || strings.Contains(err.Error(), "'s'") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// endless is a body without end; it counts what was read of it.
type endless struct {
	head string
	unit string
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if e.head == "" {
			e.head = e.unit
		}
		m := copy(p[n:], e.head)
		e.head = e.head[m:]
		n += m
	}
	e.read += n
	return n, nil
}

// Rule LIFE2: bodies, and what is held of them, are bounded.
func TestServerInfo_Bounds(t *testing.T) {
	for _, tt := range []struct {
		name, head, unit string
		most             int
	}{
		{"one text", `{"a":"`, "x", maxInfoBytes},
		{"many keys", `{"a":0`, `,"b":0`, maxInfoBytes},
	} {
		in := &endless{head: tt.head, unit: tt.unit}
		if _, err := readServerInfo(in, DefaultMaxRanks); !errors.Is(err, errTooLarge) {
			t.Errorf("%s: %v, want errTooLarge", tt.name, err)
		}
		if in.read > tt.most+4096 {
			t.Errorf("%s: %d bytes were read, want at most %d", tt.name, in.read, tt.most)
		}
	}
	if _, err := readServerInfo(&endless{head: `{"dp_size":`, unit: "1"}, DefaultMaxRanks); !errors.Is(err, errNoObject) {
		t.Errorf("one number: %v, want errNoObject", err)
	}
	long := strings.Repeat("x", 1<<16)
	large := `{"a":"` + long + `","` + long + `":"` + long + `","model_path":"` + long + `","dp_size":2}`
	if f, err := readInfo(large); err != nil || f.ranks != 2 || f.model() != "" {
		t.Errorf("long texts within the bounds: %+v, %v", f, err)
	}
}

func TestServerInfo_ReaderErrorIsKept(t *testing.T) {
	broken := errors.New("reset")
	whole := `{"dp_size":2,"a":{"b":["c"]},"kv_events":{"dp_size":"2", "load_topic" : null}} `
	for n := range len(whole) + 1 { // wherever it breaks off
		head := whole[:n]
		_, err := readServerInfo(io.MultiReader(strings.NewReader(head), iotest.ErrReader(broken)), DefaultMaxRanks)
		if !errors.Is(err, broken) {
			t.Errorf("after %q: %v", head, err)
		}
	}
	whole = block("")
	if f, err := readServerInfo(iotest.OneByteReader(strings.NewReader(whole)), DefaultMaxRanks); err != nil || !f.load.told {
		t.Errorf("byte by byte: %+v, %v", f, err)
	}
}

// Whatever an engine sends: what encoding/json reads is read, with the same meaning; what it does not read is refused or,
// where it is only read over, makes no difference; and what is made of it can be dialled.
func FuzzServerInfo(f *testing.F) {
	for _, seed := range []string{
		`{}`, block(""), block(`,"load_endpoint_port_base":65533,"dp_size":8`), block(`,"load_endpoint_port_base":"5600"`), `{"dp_size":4}`,
		`{"served_model_name":"m","kv_events":{"load_endpoint_port_base":1e3}}`, `[]`, `{"a":[{"b":[]}]}`, `{"kv_events":[}`,
		block(`,"endpoint_host":"[::1]"`), block(`,"endpoint_host":"a b"`), `{"disaggregation_mode":"prefill"}`,
		`{"a\u0062":"\\","\"":"\"","model_path":"\u00e9\n","b":[true,false,null,"]"]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := readServerInfo(strings.NewReader(string(data)), 64)
		if err != nil && (got != (facts{}) || errors.Is(err, io.EOF)) {
			t.Fatalf("%+v with %v", got, err)
		}
		var object map[string]any
		if json.Unmarshal(data, &object) == nil && object != nil {
			served, _ := object["served_model_name"].(string)
			path, _ := object["model_path"].(string)
			deep := strings.Count(string(data), "[")+strings.Count(string(data), "{") > maxInfoDepth
			long := len(data) > maxInfoText
			if err != nil && !deep && !long || err == nil && !long && (bounded(served) != got.served || bounded(path) != got.path) {
				t.Fatalf("%q: %+v, %v; encoding/json reads %q", data, got, err, object)
			}
		}
		if err != nil {
			return
		}
		if got.ranks < 0 || got.ranks > 64 || got.load.told && (got.load.wrong != "" || got.load.count < 1 || got.load.count > 64) {
			t.Fatalf("%q: %+v", data, got)
		}
		engine := described(t, SourceConfig, Spec{URL: "10.9.0.5:30000"})
		c := choose(engine, known{facts: got, told: true}, &Options{Dialer: newSink()})
		for i, e := range c.dialled().ranks {
			if e.Port < 1 || e.Port > 65535 || e.Host == "" || int(e.Rank) < i || e.Trusted || isLoopback(e.Host) || isWildcard(e.Host) {
				t.Fatalf("%q: %+v", data, e)
			}
		}
		if zmq := c.worker.Transport == load.TransportZMQ; zmq != (len(c.dialled().ranks) > 0) && c.note == "" {
			t.Fatalf("%q: %+v", data, c)
		}
	})
}

func bounded(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxNameBytes)], "") }

// Reading takes memory for what is kept, not for the whole.
func BenchmarkServerInfo(b *testing.B) {
	var text strings.Builder
	text.WriteString(`{"served_model_name":"m1","dp_size":8,"internal_states":[`)
	for i := range 400 {
		fmt.Fprintf(&text, `{"rank":%d,"token_usage":0.25,"weights":"/models/shard-%d","flags":[true,false,null]},`, i, i)
	}
	text.WriteString(`{}],"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"dp_size":8,"load_endpoint_port_base":5565}}`)
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if f, err := readInfo(text.String()); err != nil || f.load.count != 8 {
			b.Fatal(f, err)
		}
	}
}

func TestServerInfo_AttentionRanksMakeTheCountUnknown(t *testing.T) {
	for text, want := range map[string]int{
		`{"dp_size":4}`: 4, `{"dp_size":4,"attn_dp_size":1}`: 4, `{"dp_size":4,"attn_dp_size":4}`: 4, `{"dp_size":1,"attn_dp_size":8}`: 0,
		`{"attn_dp_size":8}`: 0, `{"dp_size":4,"attn_dp_size":"x"}`: 4,
	} {
		f, err := readServerInfo(strings.NewReader(text), 1024)
		if err != nil || f.ranks != want {
			t.Errorf("%s: %d ranks, %v; want %d", text, f.ranks, err, want)
		}
	}
}
