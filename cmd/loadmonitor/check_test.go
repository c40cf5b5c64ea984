package main

import (
	"strings"
	"testing"
)

// What is printed can be started: --print-config refuses what serve refuses.
func TestServe_PrintConfigRefusesWhatServeRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"two workers with one address", []string{"--worker", "http://w1:1", "--worker", "w1:1"}, []string{"w1:1", "same address"}},
		{"open gRPC listener (LIFE5)", []string{"--grpc-listen", "0.0.0.0:50061"}, []string{"grpc-listen", "0.0.0.0", "--allow-insecure-listen"}},
		{"open HTTP listener (LIFE5)", []string{"--http-listen", ":8061"}, []string{"http-listen", "every address", "--allow-insecure-listen"}},
		{"address nonsense", []string{"--grpc-listen", "127.0.0.1:x:y"}, []string{"grpc-listen", "127.0.0.1:x:y", "host:port"}},
		{"port nonsense", []string{"--http-listen", "127.0.0.1:99999"}, []string{"http-listen", "99999"}},
		{"worker without a port", []string{"--worker", "http://w1:0"}, []string{"http://w1:0", "port"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, stderr, code := invoke(t, nil, "", append([]string{"serve", "--print-config"}, c.args...)...)
			if code != 1 || out != "" {
				t.Errorf("exit code %d, printed %q", code, out)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("error does not say %q:\n%s", want, stderr)
				}
			}
		})
	}
}

// Case K6 for the commands with a simulated fleet: 0 is not taken for "by default".
func TestFleetCommands_RefuseImpossibleSizes(t *testing.T) {
	for _, c := range []struct{ args, want []string }{
		{[]string{"simulate", "--workers", "0"}, []string{"workers is 0: want 1 to 16384"}},
		{[]string{"simulate", "--ranks", "0", "--workers", "-1"}, []string{"ranks is 0: want 1 to 1024", "workers is -1"}},
		{[]string{"simulate", "--load", "0"}, []string{"load is 0"}},
		{[]string{"demo", "--workers", "0"}, []string{"workers is 0"}},
		{[]string{"demo", "--ranks", "0"}, []string{"ranks is 0"}},
		{[]string{"demo", "--duration", "-1s"}, []string{"duration is -1s"}},
		{[]string{"demo", "--worker", "http://w1:1"}, []string{"unknown flag: --worker"}},
		{[]string{"demo", "--workers-file", "w"}, []string{"unknown flag: --workers-file"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			_, stderr, code := invoke(t, nil, "", c.args...)
			if code != 1 {
				t.Errorf("exit code %d", code)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("error does not say %q:\n%s", want, stderr)
				}
			}
		})
	}
}
