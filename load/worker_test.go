package load

import (
	"strings"
	"testing"
)

// Rule ID1; cases A6 and L1: one spelling per endpoint.
func TestParseAddress(t *testing.T) {
	for _, c := range []struct{ in, url, origin string }{
		{"http://w1.pool:30000/", "http://w1.pool:30000", "w1.pool:30000"},
		{"w1.pool:30000", "http://w1.pool:30000", "w1.pool:30000"},
		{"HTTP://W1.POOL:30000/v1?x=1#y", "http://w1.pool:30000", "w1.pool:30000"},
		{" http://w1.pool.:30000 ", "http://w1.pool:30000", "w1.pool:30000"},
		{"http://w1.pool", "http://w1.pool:80", "w1.pool:80"},
		{"https://w1.pool", "https://w1.pool:443", "w1.pool:443"},
		{"10.9.0.5:30000", "http://10.9.0.5:30000", "10.9.0.5:30000"},
		{"[2001:DB8::5]:30000", "http://[2001:db8::5]:30000", "[2001:db8::5]:30000"},
		{"http://[2001:db8:0:0::5]:30000", "http://[2001:db8::5]:30000", "[2001:db8::5]:30000"},
		{"fd00::5", "http://[fd00::5]:80", "[fd00::5]:80"},
		{"http://[::ffff:10.9.0.5]:30000", "http://10.9.0.5:30000", "10.9.0.5:30000"},
		{"http://w1.pool:030000", "http://w1.pool:30000", "w1.pool:30000"},
	} {
		t.Run(c.in, func(t *testing.T) {
			url, origin, err := ParseAddress(c.in)
			if err != nil || url != c.url || origin != c.origin {
				t.Errorf("ParseAddress = %q, %q, %v, want %q, %q", url, origin, err, c.url, c.origin)
			}
		})
	}
}

func TestParseAddress_Refuses(t *testing.T) {
	for _, in := range []string{
		"", "http://", "ftp://w1:1", "http://w1:0", "http://w1:65536", "http://w1:-1", "http://w1:port", "http://user:pw@w1:1",
		"http://fd00::5:30000", "http://[fd00::5", "http://w1:1:2", "http://w 1:80",
	} {
		t.Run(in, func(t *testing.T) {
			if url, _, err := ParseAddress(in); err == nil {
				t.Errorf("ParseAddress(%q) = %q, want an error", in, url)
			}
		})
	}
}

// Case N1, its kind: an error never shows a password.
func TestParseAddress_KeepsPasswords(t *testing.T) {
	for _, in := range []string{"http://user:sentinel@w1:1", "ftp://user:sentinel@w1:1", "user:sentinel@w1:1", "http://user:sentinel@w 1:x"} {
		if _, _, err := ParseAddress(in); err == nil || strings.Contains(err.Error(), "sentinel") {
			t.Errorf("ParseAddress: %v", err)
		}
	}
}

func FuzzParseAddress_IsStable(f *testing.F) {
	f.Add("http://[2001:DB8::5]:30000/")
	f.Add("w1.pool:30000")
	f.Add("fd00::5")
	f.Fuzz(func(t *testing.T, in string) {
		url, origin, err := ParseAddress(in)
		if err != nil {
			return
		}
		url2, origin2, err := ParseAddress(url)
		if err != nil || url2 != url || origin2 != origin {
			t.Errorf("%q gives %q, which gives %q, %v", in, url, url2, err)
		}
	})
}
