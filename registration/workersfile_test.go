package registration

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/loadmonitor/loadmonitor/load"
)

func TestParseWorkers_Forms(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []Spec
	}{
		{"nothing", "", nil},
		{"comments only", "# none yet\n\n", nil},
		{"document marker only", "---\n", nil},
		{"empty list", "[]\n", nil},
		{"one URL a line", "http://127.0.0.1:1\r\n\n  127.0.0.1:2  # second\n# no\n[::1]:3\nhttp://w#1:4\n", []Spec{
			{URL: "http://127.0.0.1:1", Where: "f:1"}, {URL: "127.0.0.1:2", Where: "f:3"}, {URL: "[::1]:3", Where: "f:5"},
			{URL: "http://w#1:4", Where: "f:6"},
		}},
		{"no line end, byte order mark", "\ufeffw1:1", []Spec{{URL: "w1:1", Where: "f:1"}}},
		{"YAML list of URLs", "# fleet\n- http://a:1\n- 'http://b:2'\n", []Spec{{URL: "http://a:1", Where: "f:2"}, {URL: "http://b:2", Where: "f:3"}}},
		{"flow list", `["http://a:1", {url: b:2, role: decode}]`, []Spec{{URL: "http://a:1", Where: "f:1"}, {URL: "b:2", Role: load.RoleDecode, Where: "f:1"}}},
		{"every key", `
- id: decode-1
  url: http://a:1
  role: decode
  models: [m1, m2]
  zone: no
  expected_ranks: 8
  token_file: /run/secrets/engine
  api_key_file: /run/secrets/api
  transport: zmq
  load_endpoints: [a:1, "tcp://[::1]:2"]
  load_topic: load
  curve_server_key: rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7
- url: http://b:2
  role: prefill
  transport: auto
- url: http://c:3
  transport: push
`, []Spec{
			{ID: "decode-1", URL: "http://a:1", Role: load.RoleDecode, Models: []string{"m1", "m2"}, Zone: "no", ExpectedRanks: 8,
				TokenFile: "/run/secrets/engine", APIKeyFile: "/run/secrets/api", Transport: load.TransportZMQ,
				LoadEndpoints: []string{"a:1", "tcp://[::1]:2"}, LoadTopic: "load",
				CurveServerKey: "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", Where: "f:2"},
			{URL: "http://b:2", Role: load.RolePrefill, Where: "f:14"},
			{URL: "http://c:3", Transport: load.TransportPush, Where: "f:17"},
		}},
		{"anchors", "- {url: a:1, models: &m [m1]}\n- {url: b:2, models: *m}\n", []Spec{
			{URL: "a:1", Models: []string{"m1"}, Where: "f:1"}, {URL: "b:2", Models: []string{"m1"}, Where: "f:2"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseWorkers("f", []byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// Case K6: what is misspelt or out of place is named with line, key and value.
func TestParseWorkers_RefusalNamesLineKeyAndValue(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"misspelt key", "- url: a:1\n  modles: [m]\n", []string{"f:2:", `"modles"`, `did you mean "models"`, "expected_ranks"}},
		{"unknown key", "- url: a:1\n  weight: 3\n", []string{"f:2:", `"weight"`, "token_file"}},
		{"merge key", "- &a {url: a:1}\n- <<: *a\n  id: b\n", []string{"f:2:", `"<<"`}},
		{"key twice", "- url: a:1\n  url: b:1\n", []string{"f:2:", `"url"`, "line 1"}},
		{"no url", "- id: a\n", []string{"f:1:", "url is missing"}},
		{"empty value", "- url: a:1\n  zone:\n", []string{"f:2:", "zone is empty"}},
		{"null value", "- url: a:1\n  id: null\n", []string{"f:2:", "id is empty"}},
		{"misspelt role", "- url: a:1\n  role: decod\n", []string{"f:2:", `role "decod"`, `did you mean "decode"`}},
		{"role with a space (case A4)", "- url: a:1\n  role: 'DECODE '\n", []string{"f:2:", `role "DECODE "`, "plain, prefill or decode"}},
		{"ranks with a unit", "- url: a:1\n  expected_ranks: 3ranks\n", []string{"f:2:", `expected_ranks "3ranks"`, "whole number"}},
		{"ranks with a fraction", "- url: a:1\n  expected_ranks: 3.5\n", []string{"f:2:", `"3.5"`}},
		{"models without a list", "- url: a:1\n  models: m1\n", []string{"f:2:", "models", `"m1"`, "[m1]"}},
		{"misspelt transport", "- url: a:1\n  transport: puhs\n", []string{"f:2:", `transport "puhs"`, `did you mean "push"`, "auto, push or zmq"}},
		{"transport that is not there yet", "- url: a:1\n  transport: dial\n", []string{"f:2:", `transport "dial"`, "auto, push or zmq"}},
		{"one endpoint without a list", "- url: a:1\n  load_endpoints: a:2\n", []string{"f:2:", "load_endpoints", `"a:2"`, "want a list"}},
		{"empty API key file", "- url: a:1\n  api_key_file: ''\n", []string{"f:2:", "api_key_file is empty"}},
		{"models in a mapping", "- url: a:1\n  models: {a: b}\n", []string{"f:2:", "models is a mapping"}},
		{"list as a zone", "- url: a:1\n  zone: [z]\n", []string{"f:2:", "zone is a list", "single value"}},
		{"null in models", "- url: a:1\n  models: [m1, ~]\n", []string{"f:2:", "models is empty"}},
		{"mapping at the top", "workers:\n- url: a:1\n", []string{"f:1:", "a mapping", "a list of workers"}},
		{"number at the top", "- 3\n- [a]\n", []string{"f:2:", "a list", "a URL"}},
		{"text at the top", "a b c\n", []string{"f:1:", `"a b c"`, "one URL a line"}},
		{"two documents", "- a:1\n---\n- b:1\n", []string{"f", "more than one YAML document"}},
		{"broken YAML", "- url: 'a:1\n", []string{"f", "yaml"}},
		{"YAML after URLs", "http://a:1\n- url: http://b:1\n", []string{"f:2:", `"- url: http://b:1"`, "one URL a line"}},
		{"two mistakes", "- url: a:1\n  rol: x\n- id: b\n", []string{"f:2:", "f:3:", `did you mean "role"`, "url is missing"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			specs, err := ParseWorkers("f", []byte(tt.text))
			if err == nil {
				t.Fatalf("accepted as %+v", specs)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
		})
	}
}

func TestReadWorkers_FileAndStdin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.yaml")
	if err := os.WriteFile(path, []byte("- a:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadWorkers(path, nil)
	if err != nil || len(got) != 1 || got[0].Where != path+":1" {
		t.Errorf("file: %+v, %v", got, err)
	}
	got, err = ReadWorkers("-", strings.NewReader("http://127.0.0.1:1\nhttp://127.0.0.1:2\n"))
	if err != nil || len(got) != 2 || got[1].Where != "stdin:2" {
		t.Errorf("stdin: %+v, %v", got, err)
	}
	if _, err = ReadWorkers(path+".gone", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, err = ReadWorkers("-", strings.NewReader(strings.Repeat("x", maxFileBytes+1))); err == nil || !strings.Contains(err.Error(), "16 MiB") {
		t.Errorf("large file: %v", err)
	}
}

// Case K6: two entries with one address or one id are refused at start, both named.
func TestNew_RefusesDuplicatesByName(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"one address", "- {id: a, url: http://H:1/}\n- {id: b, url: h:1}\n", []string{`"a" (f:1)`, `"b" (f:2)`, "h:1"}},
		{"trailing slash only", "http://h:1\nhttp://h:1/\n", []string{"f:1", "f:2", "h:1"}},
		{"one id", "- {id: a, url: h:1}\n- {id: a, url: h:2}\n", []string{`"a" (f:1)`, `"a" (f:2)`, "same id"}},
		{"several", "h:1\nh:1\nh:2\nh:2\nh:0\n", []string{"f:1", "f:2", "f:3", "f:4", `f:5: worker is not valid`}},
		{"out of range", "- {id: a, url: h:1, expected_ranks: -4}\n", []string{"f:1", `"a"`, "expected_ranks -4"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			specs, err := ParseWorkers("f", []byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			_, err = New(Options{Sink: newSink(), Listen: listenLoopback, Static: specs})
			if !errors.Is(err, load.ErrWorkerSpec) {
				t.Fatalf("error %v, want load.ErrWorkerSpec", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
		})
	}
}

func FuzzParseWorkers(f *testing.F) {
	for _, seed := range []string{
		"", "http://a:1\nb:2\n", "- a:1\n- {url: b:2, role: decode, models: [m], expected_ranks: 4}\n", "[]", "[::1]:3", "- &a [*a]\n",
		"---\n...\n", "- url: &x a:1\n  id: *x\n",
		"- {url: a:1, transport: zmq, load_endpoints: ['[::1]:5', tcp://b:6], load_topic: l, api_key_file: f}\n", "workers:\n  - a", "\ufeff# x\n- ~\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		specs, err := ParseWorkers("f", data)
		if err != nil {
			return
		}
		// What was accepted can be checked, and what passes is normal: normalising it again changes nothing.
		targets, err := checkStatic(specs, DefaultMaxRanks, DefaultMaxWorkers)
		if err != nil {
			return
		}
		for _, a := range targets {
			w := a.worker
			var endpoints []string
			for _, e := range a.socketSpec().endpoints {
				endpoints = append(endpoints, e.String())
			}
			b, err := Spec{ID: w.ID, URL: w.URL, Role: w.Role, Models: w.Models, Zone: w.Zone, ExpectedRanks: w.ExpectedRanks,
				TokenFile: a.tokenFile, APIKeyFile: a.apiKeyFile, Transport: w.Transport, LoadEndpoints: endpoints, LoadTopic: a.socketSpec().topic,
				CurveServerKey: a.socketSpec().serverKey}.normalise(DefaultMaxRanks)
			if err != nil || !a.describes(b) {
				t.Fatalf("%+v again is %+v, %v", a, b, err)
			}
		}
	})
}
