package rest

import (
	"encoding/json"
	"math"
	"strconv"
	"testing"
	"time"
)

var trickyTexts = []string{
	"", "plain", `quote " and \ backslash`, "tab\tnew\nline\rreturn", "\x00\x01\x1f\x7f", "/</script>&", "ö 你好 🚀",
	"\xff\xfe", "cut \xe4\xbd", "a\xc0\xafb", "\ufffd", "\u2028\u2029", "\xed\xa0\x80",
}

func TestAppendString_ReadsBackAsTheSameText(t *testing.T) {
	for _, s := range trickyTexts {
		checkString(t, s)
	}
}

func FuzzAppendString(f *testing.F) {
	for _, s := range trickyTexts {
		f.Add(s)
	}
	f.Fuzz(checkString)
}

func checkString(t *testing.T, s string) {
	got := appendString([]byte("x"), s)[1:]
	if !json.Valid(got) {
		t.Fatalf("%q became %q, which is not JSON", s, got)
	}
	var back string
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatalf("%q became %q: %v", s, got, err)
	}
	// []rune makes one U+FFFD of each byte that is not UTF-8, as must we.
	if want := string([]rune(s)); back != want {
		t.Fatalf("%q became %q, which reads %q, want %q", s, got, back, want)
	}
}

func TestAppendFloat_IsShortestAndNeverLeavesJSON(t *testing.T) {
	for _, tt := range []struct {
		f    float64
		want string
	}{
		{0, "0"}, {math.Copysign(0, -1), "0"}, {5, "5"}, {0.1, "0.1"}, {1.0 / 3, "0.3333333333333333"}, {1234567.5, "1234567.5"},
		{1e20, "100000000000000000000"}, {1e21, "1e+21"}, {1e-6, "0.000001"}, {1e-7, "1e-07"}, {-2.5, "-2.5"},
		{math.MaxFloat64, "1.7976931348623157e+308"}, {math.SmallestNonzeroFloat64, "5e-324"},
		{math.NaN(), "null"}, {math.Inf(1), "null"}, {math.Inf(-1), "null"},
	} {
		got := string(appendFloat(nil, tt.f))
		if got != tt.want {
			t.Errorf("%v became %s, want %s", tt.f, got, tt.want)
		}
		if got == "null" {
			continue
		}
		if back, err := strconv.ParseFloat(got, 64); err != nil || back != tt.f {
			t.Errorf("%v became %s, which reads back as %v, %v", tt.f, got, back, err)
		}
		if !json.Valid([]byte(got)) {
			t.Errorf("%v became %s, which is not JSON", tt.f, got)
		}
	}
}

func TestClock_WritesUTCMilliseconds(t *testing.T) {
	var c clock
	for _, at := range []time.Time{
		captured, captured.Add(-13 * time.Hour), captured, captured.Add(time.Millisecond),
		time.Date(2026, 12, 31, 23, 59, 59, 999_999_999, time.UTC), time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(2028, 2, 29, 1, 2, 3, 4_000_000, time.FixedZone("", 3600)),
		time.UnixMilli(0), time.UnixMilli(-1), time.UnixMilli(-dayMs), time.UnixMilli(dayMs - 1),
	} {
		want := at.UTC().Format(`"2006-01-02T15:04:05.000Z"`)
		if got := string(c.append(nil, at.UnixMilli())); got != want {
			t.Errorf("%v became %s, want %s", at, got, want)
		}
	}
}
