package zmq

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	zmq4 "github.com/pebbe/zmq4"
)

func keyPair(t testing.TB) (public, secret string) {
	t.Helper()
	public, secret, err := zmq4.NewCurveKeypair()
	if err != nil {
		t.Fatal(err)
	}
	return public, secret
}

func TestBridge_Curve(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	public, secret := keyPair(t)
	socket, err := c.NewSocket(zmq4.PUB)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for _, err := range []error{
		socket.SetLinger(0), socket.SetCurveServer(1), socket.SetCurveSecretkey(secret), socket.Bind(anyPort),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	endpoint, err := socket.GetLastEndpoint()
	if err != nil {
		t.Fatal(err)
	}
	plain := publish(t, c, anyPort, running(1))
	other, _ := keyPair(t)
	right, wrong, none, needless := target("right", 0, endpoint), target("wrong", 0, endpoint), target("none", 0, endpoint), target("needless", 0, plain.endpoint)
	right.ServerKey, wrong.ServerKey, needless.ServerKey = public, other, public
	start(t, quick(s), right, wrong, none, needless)
	n := byte(0)
	s.await(t, "data over CURVE", func() bool {
		for _, part := range [][]byte{[]byte("load"), {0, 0, 0, 0, 0, 0, 0, n}} {
			if _, err := socket.SendBytes(part, zmq4.SNDMORE); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := socket.SendBytes(running(1), 0); err != nil {
			t.Fatal(err)
		}
		n++
		return len(s.reports[targetKey{"right", 0}]) > 0
	})
	s.awaitNoted(t, "wrong", 0, "no load message")
	s.awaitNoted(t, "none", 0, "wants CURVE: configure its server key")
	s.awaitNoted(t, "needless", 0, "does not use CURVE")
	if s.count("wrong", 0)+s.count("none", 0)+s.count("needless", 0) != 0 {
		t.Error("data without the right key")
	}
}

func TestCurve_KeysAreChecked(t *testing.T) {
	public, secret := keyPair(t)
	other, _ := keyPair(t)
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name  string
		curve Curve
		want  string // "": it loads
	}{
		{"none", Curve{}, ""},
		{"server key alone", Curve{ServerKey: public}, ""},
		{"secret file", Curve{SecretKeyFile: file("s", secret+"\n")}, ""},
		{"both files", Curve{SecretKeyFile: file("s", secret), PublicKeyFile: file("p", public)}, ""},
		{"pair that does not fit", Curve{SecretKeyFile: file("s", secret), PublicKeyFile: file("p", other)}, "does not belong to secret key file"},
		{"public file alone", Curve{PublicKeyFile: file("p", public)}, "without a secret key file"},
		{"missing file", Curve{SecretKeyFile: "/nowhere/key"}, "CURVE secret key: open /nowhere/key"},
		{"short", Curve{SecretKeyFile: file("short", secret[:39])}, "short has 39 characters"},
		{"other characters", Curve{ServerKey: strings.Repeat("~", 40)}, "characters that Z85 does not know"},
	} {
		t.Run(c.name, func(t *testing.T) {
			keys, err := c.curve.load()
			switch {
			case c.want == "" && (err != nil || len(keys.public) != 40 || len(keys.secret) != 40):
				t.Errorf("%v, %d and %d characters", err, len(keys.public), len(keys.secret))
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %v, want one with %q", err, c.want)
			case err != nil && (strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), secret[:39])):
				t.Errorf("case N1: the key is in the error: %v", err)
			}
		})
	}
}
