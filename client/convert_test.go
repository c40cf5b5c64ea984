package client

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// setAlone sets one optional field of m to 7.
func setAlone(m protoreflect.Message, f protoreflect.FieldDescriptor) {
	if f.Kind() == protoreflect.DoubleKind {
		m.Set(f, protoreflect.ValueOfFloat64(7))
	} else {
		m.Set(f, protoreflect.ValueOfInt64(7))
	}
}

// named is a set of signals or figures.
type named interface {
	~uint8
	String() string
}

// knownOf collects what is known of a RankLoad or an Aggregate, by name.
func knownOf[I, F named](ni I, nf F, ints func(I) (int64, bool), floats func(F) (float64, bool)) map[string]float64 {
	got := map[string]float64{}
	for i := range ni {
		if v, ok := ints(i); ok {
			got[i.String()] = float64(v)
		}
	}
	for f := range nf {
		if v, ok := floats(f); ok {
			got[f.String()] = v
		}
	}
	return got
}

// Each optional field of the wire arrives under its own name, alone, and nothing else becomes known (rule VAL1).
func TestFromProto_EachSignalArrivesUnderItsName(t *testing.T) {
	fields := (&loadmonitorpb.Rank{}).ProtoReflect().Descriptor().Fields()
	n := 0
	for i := range fields.Len() {
		f := fields.Get(i)
		if !f.HasPresence() || f.Name() == "sample_age_ms" {
			continue
		}
		n++
		var p loadmonitorpb.Rank
		setAlone(p.ProtoReflect(), f)
		var r Rank
		rankFromProto(&r, &p)
		got := knownOf(load.NumIntSignals, load.NumFloatSignals, r.Load.Int, r.Load.Float)
		if diff := cmp.Diff(map[string]float64{string(f.Name()): 7}, got); diff != "" {
			t.Errorf("rank with %s only (-want +got):\n%s", f.Name(), diff)
		}
		if _, ok := r.SampleAge(); ok {
			t.Errorf("rank with %s only has a sample age", f.Name())
		}
	}
	if want := int(load.NumIntSignals) + int(load.NumFloatSignals); n != want {
		t.Errorf("the wire carries %d signals, the domain has %d", n, want)
	}
}

func TestFromProto_EachFigureArrivesUnderItsName(t *testing.T) {
	fields := (&loadmonitorpb.Aggregate{}).ProtoReflect().Descriptor().Fields()
	n := 0
	for i := range fields.Len() {
		f := fields.Get(i)
		if !f.HasPresence() {
			continue
		}
		n++
		var p loadmonitorpb.Aggregate
		setAlone(p.ProtoReflect(), f)
		var a load.Aggregate
		aggregateFromProto(&a, &p)
		got := knownOf(load.NumIntFigures, load.NumFloatFigures, a.Int, a.Float)
		if diff := cmp.Diff(map[string]float64{string(f.Name()): 7}, got); diff != "" {
			t.Errorf("aggregate with %s only (-want +got):\n%s", f.Name(), diff)
		}
	}
	if want := int(load.NumIntFigures) + int(load.NumFloatFigures); n != want {
		t.Errorf("the wire carries %d figures, the domain has %d", n, want)
	}
}

func TestFromProto_Worker(t *testing.T) {
	age := int64(12)
	got := statusFromProto(worker{
		Handle: 7, Id: "w", Url: "http://h:1", Role: loadmonitorpb.Role_ROLE_PREFILL, Models: []string{"m1", "m2"}, Zone: "z",
		Transport: loadmonitorpb.Transport_TRANSPORT_ZMQ, Freshness: loadmonitorpb.Freshness_FRESHNESS_INCOMPLETE, Reason: "why", TransportReason: "zmq: configured",
		SourceInstance: "src", Sequence: 9, Restarts: 2, ExpectedRanks: 4, OldestReceivedUs: 55, FreshnessWindowMs: 2500,
		Anomalies: []string{"clock_skew", "not_known_yet"}, LastError: "broke",
		Aggregate: loadmonitorpb.Aggregate_builder{RankCount: 1}.Build(),
		Ranks: []*loadmonitorpb.Rank{rank{
			DpRank: 3, Freshness: loadmonitorpb.Freshness_FRESHNESS_STALE, ReceivedUs: 44, Reason: "old", SampleAgeMs: &age,
		}.Build()},
	}.Build())
	want := &Status{
		Handle: 7, ID: "w", URL: "http://h:1", Role: load.RolePrefill, Models: []string{"m1", "m2"}, Zone: "z",
		Transport: load.TransportZMQ, Freshness: load.Incomplete, Reason: "why", TransportReason: "zmq: configured",
		SourceInstance: "src", Sequence: 9, Restarts: 2, ExpectedRanks: 4, Window: 2500 * time.Millisecond,
		Anomalies: []string{"clock_skew", "not_known_yet"}, LastError: "broke",
		Aggregate: load.Aggregate{RankCount: 1},
		Ranks:     []Rank{{Load: load.RankLoad{DPRank: 3}, Freshness: load.Stale, Reason: "old", sampleAge: 12 * time.Millisecond, received: 44}},
		oldest:    55,
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Status{}, Rank{}, load.Aggregate{}, load.RankLoad{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if age, ok := got.Ranks[0].SampleAge(); !ok || age != 12*time.Millisecond {
		t.Errorf("sample age %v, %t", age, ok)
	}
}

// Every word of the wire has one of the domain, and words of a newer monitor are the unspecified ones.
func TestFromProto_Words(t *testing.T) {
	for n, name := range loadmonitorpb.Role_name {
		r := roleFromProto(loadmonitorpb.Role(n))
		if (r == load.RoleUnspecified) != (n == 0) || roleToProto(r) != loadmonitorpb.Role(n) {
			t.Errorf("%s becomes %v and then %v", name, r, roleToProto(r))
		}
	}
	for n, name := range loadmonitorpb.Freshness_name {
		if f := freshnessFromProto(loadmonitorpb.Freshness(n)); "FRESHNESS_"+strings.ToUpper(f.String()) != name {
			t.Errorf("%s becomes %v", name, f)
		}
	}
	for n, name := range loadmonitorpb.Transport_name {
		if tr := transportFromProto(loadmonitorpb.Transport(n)); "TRANSPORT_"+strings.ToUpper(tr.String()) != name {
			t.Errorf("%s becomes %v", name, tr)
		}
	}
	for n, name := range loadmonitorpb.FleetState_name {
		if s := stateFromProto(loadmonitorpb.FleetState(n)); "FLEET_STATE_"+strings.ToUpper(s.String()) != name {
			t.Errorf("%s becomes %v", name, s)
		}
	}
	if f := freshnessFromProto(99); f != load.FreshnessUnspecified {
		t.Errorf("an unknown freshness becomes %v", f)
	}
}

func TestFromProto_WildNumbersDoNotOverflow(t *testing.T) { // LIFE3
	huge := int64(1) << 62
	s := statusFromProto(worker{
		Handle: 1, Id: "w", FreshnessWindowMs: 1<<32 - 1, OldestReceivedUs: 1<<64 - 1, Freshness: fresh,
		Ranks: []*loadmonitorpb.Rank{rank{Freshness: fresh, ReceivedUs: 1<<64 - 1, SampleAgeMs: &huge}.Build()},
	}.Build())
	now := time.Now()
	w := Worker{Status: s, clock: (*clock)(nil).observe(now, now, 1)}
	if age, ok := w.Age(now); !ok || age != 0 {
		t.Errorf("age %v, %t: want 0", age, ok)
	}
	if age, ok := s.Ranks[0].SampleAge(); !ok || age < 0 {
		t.Errorf("sample age %v, %t", age, ok)
	}
	if c := (*clock)(nil).observe(now, now, 1<<62); c != nil {
		t.Errorf("a clock is read from a wild time: %+v", c)
	}
}
