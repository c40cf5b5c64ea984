package watch

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

var updateGolden = flag.Bool("update", false, "write the golden traces anew")

const goldenDir = "../../testdata/watch"

// trace is one file of testdata/watch; README.md there says what its fields mean.
type trace struct {
	About   string        `json:"about"`
	Streams []traceStream `json:"streams"`
}

type traceStream struct {
	Request      any           `json:"request"`
	RequestBytes string        `json:"request_bytes"`
	Updates      []traceUpdate `json:"updates"`
}

type traceUpdate struct {
	About   string   `json:"about"`
	Frames  []string `json:"frames"`
	Restart bool     `json:"restart,omitempty"`
	View    any      `json:"view"`
}

// plain turns a message into the standard JSON of protobuf, as values that encoding/json writes in one way only.
func plain(t *testing.T, m proto.Message) any {
	t.Helper()
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, b)
}

func decode(t *testing.T, b []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// plainView is what a receiver holds, as a trace shows it.
func plainView(t *testing.T, r *receiver) any {
	workers := []any{}
	for _, w := range r.sorted() {
		workers = append(workers, plain(t, w))
	}
	v := map[string]any{"epoch": r.epoch, "view": r.view, "version": r.version, "workers": workers, "summary": nil}
	if r.summary != nil {
		v["summary"] = plain(t, r.summary)
	}
	return v
}

func render(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

// The traces are what this service sends; a change of the wire form shows here.
func TestGolden_TheServiceSendsTheTraces(t *testing.T) {
	for name, record := range recordings {
		t.Run(name, func(t *testing.T) {
			got := render(t, record(t))
			path := filepath.Join(goldenDir, name+".json")
			if *updateGolden {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("(-file +sent):\n%s", diff)
			}
		})
	}
	files, err := filepath.Glob(filepath.Join(goldenDir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	var inDir []string
	for _, f := range files {
		inDir = append(inDir, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(recordings)), inDir); diff != "" {
		t.Errorf("traces (-recorded +in the folder):\n%s", diff)
	}
}

// The traces can be followed by their bytes alone: this test knows the messages and the contract, not the service.
func TestGolden_AReceiverFollowsTheTraces(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(goldenDir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d traces: %v", len(files), err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var tr trace
			d := json.NewDecoder(bytes.NewReader(b))
			d.UseNumber()
			d.DisallowUnknownFields()
			if err := d.Decode(&tr); err != nil {
				t.Fatal(err)
			}
			follow(t, &tr)
		})
	}
}

func follow(t *testing.T, tr *trace) {
	var r receiver
	for i, s := range tr.Streams {
		req := &loadmonitorpb.WatchRequest{}
		if err := proto.Unmarshal(fromBase64(t, s.RequestBytes), req); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(render(t, s.Request), render(t, plain(t, req))); diff != "" {
			t.Errorf("stream %d: request and its bytes differ:\n%s", i, diff)
		}
		if v := req.GetResume(); v != nil && (v.GetEpoch() != r.epoch || v.GetVersion() != r.version) {
			t.Errorf("stream %d resumes from %v, the receiver holds %s %d", i, v, r.epoch, r.version)
		}
		for j, u := range s.Updates {
			var err error
			for k, f := range u.Frames {
				m := &loadmonitorpb.WatchResponse{}
				if err := proto.Unmarshal(fromBase64(t, f), m); err != nil {
					t.Fatal(err)
				}
				if len(m.ProtoReflect().GetUnknown()) > 0 {
					t.Errorf("stream %d update %d: unknown fields", i, j)
				}
				if last := k == len(u.Frames)-1; m.GetLast() != last {
					t.Errorf("stream %d update %d frame %d: last is %v", i, j, k, m.GetLast())
				}
				if err = r.take(m); err != nil {
					break
				}
			}
			if (err != nil) != u.Restart {
				t.Errorf("stream %d update %d: restart is %v, the receiver says %v", i, j, u.Restart, err)
			}
			if diff := cmp.Diff(string(render(t, u.View)), string(render(t, plainView(t, &r)))); diff != "" {
				t.Errorf("stream %d update %d (-trace +receiver):\n%s", i, j, diff)
			}
		}
	}
}

func fromBase64(t *testing.T, s string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
