package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Case K6 and rule FR7: a value that cannot be meant ends the start, named with its key.
func TestServe_RefusesImpossibleSettings(t *testing.T) {
	for _, c := range []struct {
		name string
		file string
		env  map[string]string
		args []string
		want []string // all of these stand in the error
	}{
		{"duration without a unit", "stale-after: 3\n", nil, nil, []string{"stale-after", `"3"`, "missing unit", ".yaml:1"}},
		{"duration with an unknown unit", "stale-after: 3seconds\n", nil, nil, []string{"stale-after", "3seconds"}},
		{"misspelt key", "stale-afer: 3s\n", nil, nil, []string{`unknown key "stale-afer"`, `did you mean "stale-after"?`}},
		{"negative duration", "stale-after: -3s\n", nil, nil, []string{"stale-after", "-3s"}},
		{"duration of 0", "stale-after: 0s\n", nil, nil, []string{"stale-after", "0s"}},
		{"empty value", "stale-after:\n", nil, nil, []string{"stale-after", "empty"}},
		{"key twice", "lease: 15s\nlease: 16s\n", nil, nil, []string{"lease"}},
		{"not a mapping", "- a\n", nil, nil, []string{"want a mapping"}},
		{"two values where one is wanted", "stale-after: [3s, 5s]\n", nil, nil, []string{"stale-after", "single value"}},
		{"two documents", "lease: 15s\n---\nlease: 16s\n", nil, nil, []string{"more than one document"}},
		{"mapping where one value is wanted", "lease: {a: 1}\n", nil, nil, []string{"lease", "single value"}},
		{"number with letters", "max-ranks: many\n", nil, nil, []string{".yaml:1", `max-ranks is "many": want a whole number`}},
		{"port beyond the last", "", map[string]string{"LOADMONITOR_ADVERTISE_PORT": "70000"}, nil, []string{`advertise-port is "70000": want a number from 0 to 65535`}},
		{"flag with letters", "", nil, []string{"--max-ranks", "many"}, []string{`--max-ranks is "many": want a whole number`}},
		{"truth in other words", "allow-insecure-listen: maybe\n", nil, nil, []string{`"maybe": want true or false`}},
		{"line of a worker's key", "lease: 15s\nworkers:\n\n# one\n- url: http://w1:1\n  models: [a,\n    b]\n  rol: decode\nheartbeat: 1s\n", nil, nil, []string{".yaml:8: ", `"rol"`}},
		{"line of a worker in one line", "{lease: 15s,\n workers: [http://w1:1,\n {url: http://w2:1, zone: }]}\n", nil, nil, []string{".yaml:3: ", "zone is empty"}},
		{"line of a worker that is there twice", "workers:\n  - http://w1:1\n  - url: http://w2:1\n  - url: http://w1:1\n", nil, nil, []string{".yaml:2", ".yaml:4", "w1:1"}},
		{"window below three intervals (C3)", "", nil, []string{"--stale-after", "2s"}, []string{"stale-after is 2s", "report-interval is 1s"}},
		{"window below three heartbeats", "", nil, []string{"--heartbeat", "10s"}, []string{"stale-after is 3s", "heartbeat is 10s"}},
		{"window for ZMQ below a publisher's silence (FR7)", "", nil, []string{"--zmq-stale-after", "2s"}, []string{"zmq-stale-after is 2s", "2.5s"}},
		{"interval of a third of the lease", "", nil, []string{"--lease", "3s"}, []string{"report-interval is 1s", "lease is 3s"}},
		{"unknown flag", "", nil, []string{"--nonsense"}, []string{"nonsense"}},
		{"environment", "", map[string]string{"LOADMONITOR_LEASE": "soon"}, nil, []string{"LOADMONITOR_LEASE", "soon"}},
		{"number out of range", "", nil, []string{"--max-ranks", "0"}, []string{"max-ranks is 0", "want 1 to"}},
		{"wildcard advertised", "", nil, []string{"--advertise-ip", "0.0.0.0"}, []string{"advertise-ip is 0.0.0.0"}},
		{"log level", "", nil, []string{"--log-level", "loud"}, []string{"log-level", "loud"}},
		{"open listener (LIFE5)", "", nil, []string{"--grpc-listen", "0.0.0.0:0"}, []string{"grpc-listen", "0.0.0.0", "--allow-insecure-listen"}},
		{"two workers with one address", "", nil, []string{"--worker", "http://w1.pool:30000/", "--worker", "W1.POOL:30000"}, []string{"w1.pool:30000"}},
		{"unknown key of a worker", "workers:\n- url: http://w1:1\n  modle: m\n", nil, nil, []string{`"modle"`, "models"}},
		{"worker without a port", "workers:\n- url: http://w1:0\n", nil, nil, []string{"http://w1:0", "port"}},
		{"probing all the time", "", nil, []string{"--probe-interval", "1ms"}, []string{"probe-interval is 1ms", "at least 100ms"}},
		{"transport of a worker", "workers:\n- url: http://w1:1\n  transport: zqm\n", nil, nil, []string{`transport "zqm"`, "auto, push or zmq"}},
		{"missing file", "", nil, []string{"--workers-file", "nowhere.yaml"}, []string{"nowhere.yaml"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"serve", "--http-listen", "127.0.0.1:0"}, c.args...)
			if !strings.Contains(c.name, "LIFE5") {
				args = append(args, "--grpc-listen", "127.0.0.1:0")
			}
			if c.file != "" {
				args = append(args, "--config", write(t, "config.yaml", c.file))
			}
			_, stderr, code := invoke(t, c.env, "", args...)
			if code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("error does not say %q:\n%s", want, stderr)
				}
			}
		})
	}
}

func TestServe_CommandLineBeforeEnvironmentBeforeFile(t *testing.T) {
	file := write(t, "config.yaml", "lease: 20s\nstale-after: 4s\nreport-interval: 900ms\nmax-ranks: 8\n")
	env := map[string]string{"LOADMONITOR_LEASE": "30s", "LOADMONITOR_STALE_AFTER": "5s"}
	out, stderr, code := invoke(t, env, "", "serve", "--print-config", "--config", file, "--lease", "40s")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{"lease: 40s\n", "stale-after: 5s\n", "report-interval: 900ms\n", "max-ranks: 8\n", "heartbeat: 1s\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("printed configuration lacks %q:\n%s", want, out)
		}
	}
}

func TestServe_PrintedConfigurationReadsBackAsItself(t *testing.T) {
	workers := write(t, "workers.yaml", "- url: http://w1:30000\n  id: one\n  role: decode\n  models: [m1, m2]\n  zone: no\n  expected_ranks: 4\n  token_file: /run/token\n  api_key_file: /run/api\n"+
		"- url: http://w3:30000\n  transport: zmq\n  load_endpoints: [w3:5559, 'tcp://[fd00::4]:5559']\n  load_topic: l3\n"+
		"  curve_server_key: rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\n")
	args := []string{"serve", "--print-config", "--worker", "http://w2:30000", "--workers-file", workers, "--stale-after", "4s"}
	first, stderr, code := invoke(t, nil, "", args...)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	second, stderr, code := invoke(t, nil, "", "serve", "--print-config", "--config", write(t, "config.yaml", first))
	if code != 0 || first != second {
		t.Errorf("exit code %d %s; first:\n%s\nsecond:\n%s", code, stderr, first, second)
	}
	for _, want := range []string{"one", "decode", "m2", "/run/token", "/run/api", "http://w2:30000", "transport: zmq", "w3:5559", "tcp://[fd00::4]:5559", "l3", "rq:rM"} {
		if !strings.Contains(first, want) {
			t.Errorf("printed configuration lacks %q:\n%s", want, first)
		}
	}
}

func TestServe_WorkersFromStandardInput(t *testing.T) {
	out, stderr, code := invoke(t, nil, "http://w1:30000\nhttp://w2:30000\n", "serve", "--print-config", "--workers-file", "-")
	if code != 0 || !strings.Contains(out, "http://w1:30000") || !strings.Contains(out, "http://w2:30000") {
		t.Errorf("exit code %d %s:\n%s", code, stderr, out)
	}
}

func TestVersion_PrintsOneLine(t *testing.T) {
	out, _, code := invoke(t, nil, "", "version")
	if code != 0 || !strings.HasPrefix(out, "loadmonitor ") || strings.Count(out, "\n") != 1 {
		t.Errorf("exit code %d, output %q", code, out)
	}
}
