package registration

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/loadmonitor/loadmonitor/load"
)

// Cases A6 and L1: one worker has one spelling, whatever it was called.
func TestSpec_AddressHasOneSpelling(t *testing.T) {
	for _, tt := range []struct{ given, url, id string }{
		{"http://w1.pool:30000/", "http://w1.pool:30000", "w1.pool:30000"},
		{"w1.pool:30000", "http://w1.pool:30000", "w1.pool:30000"},
		{"W1.POOL:30000", "http://w1.pool:30000", "w1.pool:30000"},
		{"HTTP://W1.pool.:30000/v1?x#y", "http://w1.pool:30000", "w1.pool:30000"},
		{"[2001:DB8::5]:30000", "http://[2001:db8::5]:30000", "[2001:db8::5]:30000"},
		{"[2001:db8:0:0::5]:30000", "http://[2001:db8::5]:30000", "[2001:db8::5]:30000"},
		{"http://[fd00::5]:30000", "http://[fd00::5]:30000", "[fd00::5]:30000"},
		{"fd00::5", "http://[fd00::5]:80", "[fd00::5]:80"},
		{"[::ffff:10.9.0.5]:30000", "http://10.9.0.5:30000", "10.9.0.5:30000"},
		{"https://w1.pool", "https://w1.pool:443", "w1.pool:443"},
		{"w1.pool", "http://w1.pool:80", "w1.pool:80"},
	} {
		got, err := Spec{URL: tt.given}.normalise(DefaultMaxRanks)
		if err != nil {
			t.Errorf("%s: %v", tt.given, err)
			continue
		}
		want := load.Worker{ID: tt.id, URL: tt.url, Origin: tt.id}
		if diff := cmp.Diff(want, got.worker); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.given, diff)
		}
	}
}

func TestSpec_RefusalNamesKeyValueAndRemedy(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, tt := range []struct {
		name string
		spec Spec
		want []string
	}{
		{"no url", Spec{}, []string{"url is empty", "http://host:port"}},
		{"scheme", Spec{URL: "ftp://a:1"}, []string{`"ftp"`, "http or https"}},
		{"gRPC scheme", Spec{URL: "grpc://a:1"}, []string{`"grpc://a:1"`, "http or https"}},
		{"port 0", Spec{URL: "http://a:0"}, []string{`"0"`, "1 to 65535"}},
		{"port too high", Spec{URL: "http://a:70000"}, []string{`"70000"`, "1 to 65535"}},
		{"wildcard host (case K4)", Spec{URL: "http://0.0.0.0:1"}, []string{"0.0.0.0", "dialled"}},
		{"wildcard IPv6 host", Spec{URL: "http://[::]:1"}, []string{"::", "dialled"}},
		{"zone of an address", Spec{URL: "http://[fe80::1%25eth0]:1"}, []string{"zone", "routable"}},
		{"not ASCII", Spec{URL: "http://wörker:1"}, []string{"wörker", "DNS name"}},
		{"long url", Spec{URL: "http://" + strings.Repeat("x", 3000)}, []string{"url has 3007 bytes", "at most 2048"}},
		{"role", Spec{URL: "a:1", Role: 9}, []string{"role 9", "plain, prefill or decode"}},
		{"transport", Spec{URL: "a:1", Transport: 9}, []string{"transport 9", "auto, push or zmq"}},
		{"negative ranks", Spec{URL: "a:1", ExpectedRanks: -1}, []string{"expected_ranks -1", "0 (not known) to 1024"}},
		{"too many ranks", Spec{URL: "a:1", ExpectedRanks: 1025}, []string{"expected_ranks 1025", "to 1024"}},
		{"long id", Spec{URL: "a:1", ID: long}, []string{"id has 300 bytes", "at most 256"}},
		{"id with a line end", Spec{URL: "a:1", ID: "a\nb"}, []string{`id "a\nb"`, "control character"}},
		{"id that is not UTF-8", Spec{URL: "a:1", ID: "a\xff"}, []string{"id", "UTF-8"}},
		{"zone with a space", Spec{URL: "a:1", Zone: "z "}, []string{`zone "z "`, "space"}},
		{"empty model", Spec{URL: "a:1", Models: []string{"m", ""}}, []string{"models", "empty"}},
		{"too many models", Spec{URL: "a:1", Models: make([]string, 65)}, []string{"models: 65", "at most 64"}},
		{"no transport yet", Spec{URL: "a:1", Transport: load.TransportDial}, []string{"transport 3", "auto, push or zmq"}},
		{"endpoints that are pushed to", Spec{URL: "a:1", Transport: load.TransportPush, LoadEndpoints: []string{"a:2"}}, []string{"load_endpoints", "transport is push", "remove one"}},
		{"endpoints for other ranks", Spec{URL: "a:1", ExpectedRanks: 3, LoadEndpoints: []string{"a:2"}}, []string{"load_endpoints has 1 entries and expected_ranks is 3"}},
		{"one endpoint for two ranks (case E6)", Spec{URL: "a:1", LoadEndpoints: []string{"a:2", "b:2", "tcp://A:2"}}, []string{"load_endpoints names a:2 for ranks 0 and 2"}},
		{"wildcard endpoint (case K4)", Spec{URL: "a:1", LoadEndpoints: []string{"*:2"}}, []string{`load_endpoints "*:2"`, "wildcard"}},
		{"too many endpoints", Spec{URL: "a:1", LoadEndpoints: make([]string, 1025)}, []string{"load_endpoints has 1025 entries", "at most 1024"}},
		{"long topic", Spec{URL: "a:1", LoadTopic: long}, []string{"load_topic has 300 bytes", "at most 255"}},
		{"short key", Spec{URL: "a:1", CurveServerKey: "rq:rM"}, []string{"curve_server_key", "40 characters", "Z85"}},
		{"key of other characters", Spec{URL: "a:1", CurveServerKey: strings.Repeat("~", 40)}, []string{"curve_server_key", "Z85"}},
		{"API key file with a space", Spec{URL: "a:1", APIKeyFile: " f"}, []string{`api_key_file " f"`, "space"}},
		{"several at once", Spec{URL: "a:0", Role: 9, ExpectedRanks: -1}, []string{"port", "role 9", "expected_ranks -1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tt.spec.normalise(DefaultMaxRanks)
			if !errors.Is(err, load.ErrWorkerSpec) {
				t.Fatalf("error %v, want one that wraps load.ErrWorkerSpec", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q has more than one line", err)
			}
		})
	}
}

// Case N1: credentials in a URL are refused and not repeated.
func TestSpec_CredentialsInURLAreNotShown(t *testing.T) {
	for _, u := range []string{"http://user:sentinel@a:1", "http://user:sen tinel@a:1", "user:sentinel@a", "http://%zz:sentinel@a:1"} {
		_, err := Spec{URL: u}.normalise(DefaultMaxRanks)
		if !errors.Is(err, load.ErrWorkerSpec) {
			t.Errorf("%s: error %v, want a refusal", u, err)
		} else if strings.Contains(err.Error(), "tinel") {
			t.Errorf("error %q shows the password", err)
		}
	}
}

func TestSpec_OrderOfModelsDoesNotMatter(t *testing.T) {
	a, errA := Spec{URL: "a:1", Models: []string{"m2", "m1", "m2"}}.normalise(DefaultMaxRanks)
	b, errB := Spec{URL: "a:1", Models: []string{"m1", "m2"}}.normalise(DefaultMaxRanks)
	if errA != nil || errB != nil || !a.describes(b) {
		t.Errorf("%+v (%v) and %+v (%v) differ", a, errA, b, errB)
	}
}
