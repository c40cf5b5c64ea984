//go:build interop

package interop

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/loadmonitor/loadmonitor/reporter/pub"
)

// The reporter's port rule is the one of the releases.
func TestSGLang_PortRule(t *testing.T) {
	type asked struct {
		Load   string `json:"load"`
		KV     string `json:"kv"`
		Replay string `json:"replay"`
		Ranks  int    `json:"ranks"`
	}
	var cases []asked
	for _, load := range []string{
		"auto", "tcp://*:5550", "tcp://*:5557", "tcp://0.0.0.0:5560", "tcp://[::]:5600", "tcp://*:65532", "tcp://*:65535",
		"tcp://10.0.0.1:6000", "ipc:///load", "tcp://*",
	} {
		for _, kv := range []string{"tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557", "tcp://*:65530", "tcp://*:65535", "tcp://10.0.0.1:5557"} {
			for _, replay := range []string{"", "ipc:///replay", "tcp://*:5556", "tcp://*:5558", "tcp://[::]:5561", "tcp://0.0.0.0:5600", "tcp://10.0.0.1:5561"} {
				for _, ranks := range []int{1, 2, 4, 8} {
					cases = append(cases, asked{load, kv, replay, ranks})
				}
			}
		}
	}
	text, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cases.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, release := range sglang {
		t.Run(release.version, func(t *testing.T) {
			peer := start(t, python, "sglang_ports.py", filepath.Join(peers, "packages"), wheel(t, release.version), file)
			var answers [][]any
			if err := json.Unmarshal([]byte(peer.line(t)), &answers); err != nil || len(answers) != len(cases) {
				t.Fatalf("%d answers to %d cases, %v", len(answers), len(cases), err)
			}
			published := 0
			for i, c := range cases {
				want := answers[i]
				got, err := pub.Ports{Load: c.Load, KVEvents: c.KV, Replay: c.Replay, Ranks: c.Ranks}.Resolve()
				switch {
				case want == nil && err == nil:
					t.Errorf("%+v: %v, the release publishes none", c, got)
				case want != nil && err != nil:
					t.Errorf("%+v: %v, the release says %v", c, err, want)
				case want != nil:
					published++
					if strings.Trim(got.Host, "[]") != want[0] || float64(got.Base) != want[1] {
						t.Errorf("%+v: %v, the release says %v", c, got, want)
					}
				}
			}
			if published < 100 || published > len(cases)-100 {
				t.Errorf("the release publishes in %d of %d cases, want some of both", published, len(cases))
			}
		})
	}
}
