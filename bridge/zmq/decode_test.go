package zmq

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// vector is one entry of testdata/zmq_vectors.json: frames as an engine sends them and what they must decode to.
type vector struct {
	Name            string         `json:"name"`
	SubscribedTopic *string        `json:"subscribed_topic"`
	Frames          []string       `json:"frames"`
	Expect          map[string]any `json:"expect"`
	Reject          string         `json:"reject"`
}

func (v *vector) frames(t testing.TB) [][]byte {
	t.Helper()
	frames := make([][]byte, len(v.Frames))
	for i, f := range v.Frames {
		b, err := hex.DecodeString(f)
		if err != nil {
			t.Fatalf("%s frame %d: %v", v.Name, i, err)
		}
		frames[i] = b
	}
	return frames
}

func (v *vector) topic() (string, bool) {
	if v.SubscribedTopic == nil {
		return "", false
	}
	return *v.SubscribedTopic, true
}

func vectors(t testing.TB) []vector {
	t.Helper()
	raw, err := os.ReadFile("testdata/zmq_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Vectors []vector }
	in := json.NewDecoder(strings.NewReader(string(raw)))
	in.UseNumber()
	if err := in.Decode(&file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) == 0 {
		t.Fatal("no vectors")
	}
	return file.Vectors
}

// signal finds a figure of a rank by its own name: as text, so that whole numbers are compared exactly.
func signal(t testing.TB, d *Decoded, name string) (text string, known bool) {
	t.Helper()
	number := func(v any) string { b, _ := json.Marshal(v); return string(b) }
	for s := range load.NumIntSignals {
		if s.String() == name {
			v, known := d.Load.Int(s)
			return number(v), known
		}
	}
	for s := range load.NumFloatSignals {
		if s.String() == name {
			v, known := d.Load.Float(s)
			return number(v), known
		}
	}
	switch name {
	case "seq":
		return number(d.Sequence), true
	case "snapshot_time_unix_ms":
		return number(d.Load.SnapshotTimeUnixMs), d.Load.SnapshotTimeUnixMs != 0
	}
	t.Fatalf("no figure is called %q", name)
	return "", false
}

func TestDecoder_Vectors(t *testing.T) {
	d := NewDecoder()
	for _, v := range vectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			topic, known := v.topic()
			var out Decoded
			err := d.Frames(v.frames(t), topic, known, &out)
			if v.Reject != "" {
				var reject *RejectError
				if !errors.As(err, &reject) || reject.Reason.String() != v.Reject {
					t.Fatalf("error %v, want reason %s", err, v.Reject)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range v.Expect {
				if name == "absent" {
					for _, a := range want.([]any) {
						if got, known := signal(t, &out, a.(string)); known {
							t.Errorf("%s = %s, want unknown", a, got)
						}
					}
					continue
				}
				number := want.(json.Number).String()
				got, known := signal(t, &out, name)
				if f, err := want.(json.Number).Float64(); err == nil && strings.ContainsAny(number, ".e") {
					b, _ := json.Marshal(f)
					number = string(b)
				}
				if !known || got != number {
					t.Errorf("%s = %s (known: %v), want %s", name, got, known, number)
				}
			}
		})
	}
}

// stat is a LoadStat array of the given elements after the tag, each already encoded.
func stat(elements ...string) []byte {
	return append([]byte{0x90 | byte(len(elements)+1)}, "\xa8LoadStat"+strings.Join(elements, "")...)
}

// Case G7: whole numbers are exact up to 2^63-1, and everything else is refused with the field named.
func TestDecoder_IntegersAreExactOrRefused(t *testing.T) {
	u64 := func(v uint64) string { return "\xcf" + string(binary.BigEndian.AppendUint64(nil, v)) }
	for _, c := range []struct {
		name, wire string
		want       int64
		refused    bool
	}{
		{"0", "\x00", 0, false},
		{"127", "\x7f", 127, false},
		{"128 as uint8", "\xcc\x80", 128, false},
		{"255", "\xcc\xff", 255, false},
		{"256", "\xcd\x01\x00", 256, false},
		{"65535", "\xcd\xff\xff", 65535, false},
		{"65536", "\xce\x00\x01\x00\x00", 65536, false},
		{"2^31", "\xce\x80\x00\x00\x00", 1 << 31, false},
		{"2^32+7", u64(1<<32 + 7), 1<<32 + 7, false},
		{"2^53+1", u64(1<<53 + 1), 1<<53 + 1, false},
		{"2^63-1", u64(math.MaxInt64), math.MaxInt64, false},
		{"5 as int64", "\xd3\x00\x00\x00\x00\x00\x00\x00\x05", 5, false},
		{"5 as int8", "\xd0\x05", 5, false},
		{"2^63", u64(1 << 63), 0, true},
		{"2^64-1", u64(math.MaxUint64), 0, true},
		{"-1", "\xff", 0, true},
		{"-1 as int64", "\xd3\xff\xff\xff\xff\xff\xff\xff\xff", 0, true},
		{"-128", "\xd0\x80", 0, true},
		{"3.0", "\xcb\x40\x08\x00\x00\x00\x00\x00\x00", 0, true},
		{"3.5", "\xcb\x40\x0c\x00\x00\x00\x00\x00\x00", 0, true},
		{"nil", "\xc0", 0, true},
		{"true", "\xc3", 0, true},
		{"text", "\xa15", 0, true},
		{"binary", "\xc4\x015", 0, true},
		{"array", "\x91\x05", 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := NewDecoder()
			for form, payload := range map[string][]byte{
				"array": stat(c.wire, "\x00", "\x00", "\x01"),
				"map":   append([]byte("\x81\xb0num_running_reqs"), c.wire...),
			} {
				var out Decoded
				err := d.Payload(payload, &out)
				if c.refused {
					var reject *RejectError
					if !errors.As(err, &reject) || reject.Field != "num_running_reqs" {
						t.Errorf("%s: error %v, want one that names num_running_reqs", form, err)
					}
					continue
				}
				if got, known := out.Load.Int(load.NumRunningReqs); err != nil || !known || got != c.want {
					t.Errorf("%s: %d (known: %v), %v, want %d", form, got, known, err, c.want)
				}
			}
		})
	}
}

// Case G5: of the array 5, 6 and 11 or more elements are a load, whatever follows the eleventh.
func TestDecoder_ArrayLengths(t *testing.T) {
	for n := range 21 {
		payload := []byte{0xdc, 0, byte(n)}
		if n > 0 {
			payload = append(payload, "\xa8LoadStat"...)
			payload = append(payload, slices.Repeat([]byte{1}, n-1)...)
		}
		var out Decoded
		err := NewDecoder().Payload(payload, &out)
		if want := n == 5 || n == 6 || n >= 11; (err == nil) != want {
			t.Errorf("%d elements: %v, want accepted: %v", n, err, want)
		}
	}
}

// Cases G4 and G5: a map may carry a tag and other keys that are not ours, and of a repeated key the last value wins.
func TestDecoder_MapKeys(t *testing.T) {
	const run, max = "\xb0num_running_reqs", "\xb4max_total_num_tokens"
	for _, c := range []struct {
		name, payload string
		running       int64
		repeated      int
		refused       bool
	}{
		{"tag key", "\x83\xa4type\xacLoadSnapshot" + run + "\x07" + max + "\x64", 7, 0, false},
		{"repeated", "\x82" + run + "\x01" + run + "\x5a", 90, 1, false},
		{"unknown values of every kind", "\x8b" + run + "\x07" +
			"\xa1a\xc0\xa1b\xc3\xa1c\xca\x00\x00\x00\x00\xa1d\xc4\x01x\xa1e\xd4\x00x\xa1f\xc7\x02\x00xx\xa1g\xd8" + strings.Repeat("x", 17) +
			"\xa1h\x92\x01\x81\xa1x\x90\xa1i\xd3" + strings.Repeat("x", 8) + "\xa1j\xda\x00\x02xx", 7, 0, false},
		{"long key", "\x82\xd9\xff" + strings.Repeat("k", 255) + "\x01" + run + "\x07", 7, 0, false},
		{"empty", "\x80", 0, 0, false},
		{"key is a number", "\x81\x01\x01", 0, 0, true},
		{"key is nil", "\x81\xc0\x01", 0, 0, true},
		{"value missing", "\x82" + run + "\x07" + max, 0, 0, true},
		{"byte that begins nothing", "\x81\xa1a\xc1", 0, 0, true},
		{"throughput below zero", "\x81\xaegen_throughput\xff", 0, 0, true},
		{"throughput without end", "\x81\xaegen_throughput\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", 0, 0, true},
		{"time is no number", "\x81\xa9timestamp\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", 0, 0, true},
		{"stray bytes", "\x81" + run + "\x07abc", 0, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out Decoded
			err := NewDecoder().Payload([]byte(c.payload), &out)
			if c.refused {
				var reject *RejectError
				if !errors.As(err, &reject) || reject.Reason != ReasonPayload {
					t.Fatalf("error %v, want a refused payload", err)
				}
				return
			}
			if got, _ := out.Load.Int(load.NumRunningReqs); err != nil || got != c.running || out.RepeatedKeys != c.repeated {
				t.Errorf("running %d, repeated %d, %v, want %d, %d", got, out.RepeatedKeys, err, c.running, c.repeated)
			}
		})
	}
}

// Rule VAL2: a negative share means unknown. Not told at all is the default of the map form, zero.
func TestDecoder_NegativeSharesAreUnknown(t *testing.T) {
	var out Decoded
	payload := "\x83\xabtoken_usage\xff\xaecache_hit_rate\xc0\xabutilization\xcb\xbf\xf0\x00\x00\x00\x00\x00\x00"
	if err := NewDecoder().Payload([]byte(payload), &out); err != nil {
		t.Fatal(err)
	}
	for s, want := range map[load.FloatSignal]bool{
		load.TokenUsage: false, load.CacheHitRate: false, load.Utilization: false, load.GenThroughput: true,
		load.PrefillThroughput: false,
	} {
		if v, known := out.Load.Float(s); known != want || v != 0 {
			t.Errorf("%s = %v (known: %v), want known: %v", s, v, known, want)
		}
	}
}

// The rank that a payload claims is told, never used, and it cannot spoil a message.
func TestDecoder_ToldRank(t *testing.T) {
	for _, c := range []struct {
		name, wire string
		rank       int64
		told       bool
	}{
		{"number", "\x03", 3, true}, {"negative", "\xff", -1, true}, {"wide", "\xcf\x00\x00\x00\x00\x00\x00\x00\x03", 3, true}, {"nil", "\xc0", 0, false}, {"text", "\xa13", 0, false},
		{"array", "\x91\x03", 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out Decoded
			err := NewDecoder().Payload(stat("\x01", "\x00", "\x00", "\x01", c.wire), &out)
			if err != nil || out.ToldRank != c.rank || out.HasToldRank != c.told || out.Load.DPRank != 0 {
				t.Errorf("%d (told: %v), rank %d, %v, want %d, %v", out.ToldRank, out.HasToldRank, out.Load.DPRank, err, c.rank, c.told)
			}
		})
	}
}

// Cases G1 and G2: what a message announces costs nothing.
func TestDecoder_BombsCostNothing(t *testing.T) {
	nest := func(n int) string { return strings.Repeat("\x91", n) }
	head := "\xa8LoadStat\x01\x00\x00\x01\x00\x01\x01\x01\x01\x01"
	for name, payload := range map[string]string{
		"array length":        "\xdd\xff\xff\xff\xff",
		"map length":          "\xdf\xff\xff\xff\xff",
		"text length":         "\xdb\xff\xff\xff\xff",
		"binary length":       "\xc6\x7f\xff\xff\xff",
		"array as a count":    "\x95\xa8LoadStat\x01\x00\x00\xdd\xff\xff\xff\xff",
		"text as a tag":       "\x96\xdb\xff\xff\xff\xff",
		"unknown array":       "\x81\xa1z\xdd\xff\xff\xff\xff",
		"unknown map":         "\x81\xa1z\xdf\xff\xff\xff\xff",
		"unknown text":        "\x81\xa1z\xdb\xff\xff\xff\xff",
		"unknown extension":   "\x81\xa1z\xc9\xff\xff\xff\xff\x00",
		"appended map":        "\x9c" + head + "\xdf\xff\xff\xff\xff",
		"nested in a map":     "\x81\xa1z" + nest(60_000),
		"nested in an array":  "\x9c" + head + nest(60_000),
		"nested, above bound": "\x9c" + head + nest(5_000_000),
		"zeros, above bound":  strings.Repeat("\x00", 64<<20),
	} {
		t.Run(name, func(t *testing.T) {
			d, bytes := NewDecoder(), []byte(payload)
			var out Decoded
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := d.Payload(bytes, &out)
			runtime.ReadMemStats(&after)
			var reject *RejectError
			if !errors.As(err, &reject) || reject.Reason != ReasonPayload {
				t.Errorf("error %v, want a refused payload", err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
				t.Errorf("allocated %d bytes", n)
			}
		})
	}
}

// Depth alone is no fault: what is skipped is only counted.
func TestDecoder_SkipsDeepValues(t *testing.T) {
	payload := []byte("\x82\xa1z" + strings.Repeat("\x91", 60_000) + "\x01\xb0num_running_reqs\x07")
	var out Decoded
	if err := NewDecoder().Payload(payload, &out); err != nil {
		t.Fatal(err)
	}
	if n, _ := out.Load.Int(load.NumRunningReqs); n != 7 {
		t.Errorf("running %d, want 7", n)
	}
}

func TestUnixMs(t *testing.T) {
	for in, want := range map[float64]int64{
		1761000000.25: 1761000000250, 0: 0, -5: 0, 1e300: 0, float64(time.Now().Unix()): time.Now().Unix() * 1000,
	} {
		if got := unixMs(in); got != want && math.Abs(float64(got-want)) > 2000 {
			t.Errorf("unixMs(%v) = %d, want %d", in, got, want)
		}
	}
}

func TestDecoder_GoodMessagesAllocateNothing(t *testing.T) {
	d := NewDecoder()
	for _, v := range vectors(t) {
		if v.Reject != "" {
			continue
		}
		frames := v.frames(t)
		topic, known := v.topic()
		var out Decoded
		if n := testing.AllocsPerRun(100, func() { _ = d.Frames(frames, topic, known, &out) }); n != 0 {
			t.Errorf("%s: %v allocations", v.Name, n)
		}
	}
}

func FuzzFrames(f *testing.F) {
	reached := make(map[Reason]bool)
	d := NewDecoder()
	for _, v := range vectors(f) {
		frames := v.frames(f)
		topic, known := v.topic()
		var out Decoded
		var reject *RejectError
		if errors.As(d.Frames(frames, topic, known, &out), &reject) {
			reached[reject.Reason] = true
		}
		frames = append(frames, nil, nil, nil)
		f.Add(frames[0], frames[1], frames[2], frames[3], uint8(len(v.Frames)), topic, known)
	}
	for r := range numReasons {
		if !reached[r] {
			f.Errorf("no seed is refused because of %s", r)
		}
	}
	f.Fuzz(func(t *testing.T, a, b, c, e []byte, n uint8, topic string, known bool) {
		frames := [][]byte{a, b, c, e}[:min(n, 4)]
		var out, again Decoded
		d := NewDecoder()
		err := d.Frames(frames, topic, known, &out)
		var reject *RejectError
		if err != nil && (!errors.As(err, &reject) || reject.Reason >= numReasons) {
			t.Fatalf("error %v has no reason", err)
		}
		if err == nil {
			valid(t, &out)
			if string(a) != topic && (known || string(a) != "load" && len(a) > 0) {
				t.Errorf("topic %q accepted where %q is subscribed", a, topic)
			}
		}
		if err2 := d.Frames(frames, topic, known, &again); (err == nil) != (err2 == nil) || err == nil && out != again {
			t.Errorf("a used decoder says %+v, %v, a new one %+v, %v", again, err2, out, err)
		}
	})
}

func FuzzPayload(f *testing.F) {
	for _, v := range vectors(f) {
		if frames := v.frames(f); len(frames) == 3 {
			f.Add(frames[2])
		}
	}
	d := NewDecoder()
	f.Fuzz(func(t *testing.T, payload []byte) {
		var out Decoded
		before := allocated()
		err := d.Payload(payload, &out)
		if n := allocated() - before; n > 1<<20 {
			t.Errorf("allocated %d bytes for %d", n, len(payload))
		}
		if err == nil {
			valid(t, &out)
		}
	})
}

// allocated returns the bytes that were ever allocated. Small objects are counted late, large ones at once.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// valid checks what every accepted message promises (rules VAL1 and VAL2).
func valid(t *testing.T, d *Decoded) {
	t.Helper()
	if d.Sequence < 0 || d.Load.SnapshotTimeUnixMs < 0 || d.RepeatedKeys < 0 || d.Load.DPRank != 0 {
		t.Errorf("accepted %+v", d)
	}
	for s := range load.NumIntSignals {
		if v, known := d.Load.Int(s); v < 0 || !known && v != 0 {
			t.Errorf("accepted %s = %d (known: %v)", s, v, known)
		}
	}
	for s := range load.NumFloatSignals {
		if v, known := d.Load.Float(s); !load.Finite(v) || v < 0 || !known && v != 0 {
			t.Errorf("accepted %s = %v (known: %v)", s, v, known)
		}
	}
	if _, known := d.Load.Int(load.NumRunningReqs); !known {
		t.Error("accepted a load without num_running_reqs")
	}
}

func BenchmarkDecoder(b *testing.B) {
	for _, v := range vectors(b) {
		if v.Reject != "" || !slices.Contains([]string{"loadstat_5_fields", "loadstat_10_fields", "snapshot_map_full", "snapshot_map_sections"}, v.Name) {
			continue
		}
		b.Run(v.Name, func(b *testing.B) {
			d, frames := NewDecoder(), v.frames(b)
			topic, known := v.topic()
			var out Decoded
			b.ReportAllocs()
			for b.Loop() {
				if err := d.Frames(frames, topic, known, &out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
