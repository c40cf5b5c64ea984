package client

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// trace is a golden trace of testdata/watch: what one receiver asks for and gets, and the view that must result. The
// traces are written by the tests of server/watch.
type trace struct {
	About   string
	Streams []struct {
		Request json.RawMessage
		Updates []struct {
			About   string
			Frames  [][]byte // base64
			Restart bool     // the frames break the contract: the view stays
			View    struct {
				Epoch, View string
				Version     uint64
				Summary     json.RawMessage
				Workers     []json.RawMessage
			}
		}
	}
}

func fromJSON[M proto.Message](t *testing.T, text json.RawMessage, m M) M {
	t.Helper()
	if err := protojson.Unmarshal(text, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// traces returns the files of all traces.
func traces(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../testdata/watch/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d traces in testdata/watch, %v", len(files), err)
	}
	return files
}

func readTrace(t testing.TB, file string) *trace {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var tr trace
	if err := json.Unmarshal(text, &tr); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return &tr
}

func TestGolden_TracesResultInTheirViews(t *testing.T) {
	for _, file := range traces(t) {
		t.Run(filepath.Base(file), func(t *testing.T) { replay(t, readTrace(t, file)) })
	}
}

func replay(t *testing.T, tr *trace) {
	var held *picture
	for i, stream := range tr.Streams {
		req := fromJSON(t, stream.Request, &loadmonitorpb.WatchRequest{})
		f := &frames{held: held, resumed: req.HasResume()}
		if f.resumed {
			want := loadmonitorpb.Resume_builder{Epoch: held.epoch, Version: held.version, View: held.view}.Build()
			if diff := cmp.Diff(want, req.GetResume(), protocmp.Transform()); diff != "" {
				t.Fatalf("stream %d resumes from something else (-held +trace):\n%s", i, diff)
			}
		}
		for j, u := range stream.Updates {
			for k, b := range u.Frames {
				var r loadmonitorpb.WatchResponse
				if err := proto.Unmarshal(b, &r); err != nil {
					t.Fatal(err)
				}
				out, err := f.take(&r)
				if last := k == len(u.Frames)-1; last && u.Restart {
					if !errors.Is(err, ErrContract) {
						t.Fatalf("stream %d update %d (%s): %v, want a broken contract", i, j, u.About, err)
					}
				} else if err != nil {
					t.Fatalf("stream %d update %d (%s), frame %d: %v", i, j, u.About, k, err)
				} else if (out.picture != nil) != last {
					t.Fatalf("stream %d update %d (%s), frame %d of %d: shown %t", i, j, u.About, k, len(u.Frames), out.picture != nil)
				}
			}
			held = f.held
			want := u.View
			if held.epoch != want.Epoch || held.view != want.View || held.version != want.Version {
				t.Errorf("stream %d update %d (%s): holds %s %s %d, want %s %s %d", i, j, u.About,
					held.epoch, held.view, held.version, want.Epoch, want.View, want.Version)
			}
			summary := fromJSON(t, want.Summary, &loadmonitorpb.Summary{})
			if held.summary != summaryFromProto(summary) || held.state != stateFromProto(summary.GetState()) || viewOf(held).Complete() != summary.GetComplete() {
				t.Errorf("stream %d update %d (%s): summary %+v, state %v, want %v", i, j, u.About, held.summary, held.state, summary)
			}
			var wantWorkers, got workers
			for _, w := range want.Workers {
				wantWorkers = append(wantWorkers, fromJSON(t, w, &loadmonitorpb.Worker{}))
			}
			for w := range viewOf(held).All() {
				got = append(got, toProto(w))
			}
			if diff := cmp.Diff(wantWorkers, got, protocmp.Transform()); diff != "" {
				t.Errorf("stream %d update %d (%s) (-want +got):\n%s", i, j, u.About, diff)
			}
			consistent(t, held)
		}
	}
}

// toProto says in the words of the wire what a view shows of a worker, marks included.
func toProto(w Worker) *loadmonitorpb.Worker {
	b := worker{
		Handle: w.Handle, Id: w.ID, Url: w.URL, Role: roleToProto(w.Role), Models: w.Models, Zone: w.Zone,
		Transport: loadmonitorpb.Transport(w.Transport), TransportReason: w.TransportReason,
		Freshness: loadmonitorpb.Freshness(w.Freshness), Reason: w.Reason,
		SourceInstance: w.SourceInstance, Sequence: w.Sequence, Restarts: w.Restarts, ExpectedRanks: uint32(w.ExpectedRanks),
		OldestReceivedUs: uint64(w.oldestFresh()), FreshnessWindowMs: uint32(w.Window.Milliseconds()), Anomalies: w.Anomalies, LastError: w.LastError,
		Aggregate: loadmonitorpb.Aggregate_builder{RankCount: w.Aggregate.RankCount}.Build(),
	}
	setKnown(b.Aggregate, load.NumIntFigures, load.NumFloatFigures, w.Aggregate.Int, w.Aggregate.Float)
	for i := range w.Ranks {
		r := &w.Ranks[i]
		p := rank{DpRank: r.Load.DPRank, Freshness: loadmonitorpb.Freshness(r.Freshness), ReceivedUs: uint64(w.received(i)), Reason: r.Reason}.Build()
		if age, ok := r.SampleAge(); ok {
			p.SetSampleAgeMs(age.Milliseconds())
		}
		setKnown(p, load.NumIntSignals, load.NumFloatSignals, r.Load.Int, r.Load.Float)
		b.Ranks = append(b.Ranks, p)
	}
	return b.Build()
}

// setKnown sets the fields of m that are named for what is known.
func setKnown[I, F named](m proto.Message, ni I, nf F, ints func(I) (int64, bool), floats func(F) (float64, bool)) {
	field := func(name string) protoreflect.FieldDescriptor {
		return m.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name))
	}
	for i := range ni {
		if v, ok := ints(i); ok {
			m.ProtoReflect().Set(field(i.String()), protoreflect.ValueOfInt64(v))
		}
	}
	for f := range nf {
		if v, ok := floats(f); ok {
			m.ProtoReflect().Set(field(f.String()), protoreflect.ValueOfFloat64(v))
		}
	}
}
