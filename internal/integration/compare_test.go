package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/loadmonitor/loadmonitor/client"
	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// selects is the filter of the contract: each list that is not empty must contain the worker's value, of its models one.
func selects(f client.Filter, w *loadmonitorpb.Worker) bool {
	in := func(list []string, values ...string) bool {
		return len(list) == 0 || slices.ContainsFunc(values, func(v string) bool { return slices.Contains(list, v) })
	}
	return in(f.IDs, w.GetId()) && in(f.Models, w.GetModels()...) && in(f.Zones, w.GetZone()) &&
		(len(f.Roles) == 0 || slices.Contains(f.Roles, load.Role(w.GetRole())))
}

// picture is a snapshot in a form that is quick to compare with views. It is not changed once made.
type picture struct {
	epoch    string
	version  uint64
	state    load.FleetState
	summary  load.Summary
	complete bool
	workers  []*expected
}

// expected is one worker of it.
type expected struct {
	*loadmonitorpb.Worker
	aggregate load.Aggregate
	ranks     []load.RankLoad
}

// pictureOf takes in the answer to a GetSnapshot without a filter.
func pictureOf(all *loadmonitorpb.GetSnapshotResponse) *picture {
	s := all.GetSummary()
	p := &picture{
		epoch: all.GetEpoch(), version: all.GetVersion(), state: load.FleetState(s.GetState()), complete: s.GetComplete(),
		summary: load.Summary{
			Workers: int(s.GetWorkers()), Fresh: int(s.GetFresh()), Stale: int(s.GetStale()), Missing: int(s.GetMissing()),
			Incomplete: int(s.GetIncomplete()), Unreachable: int(s.GetUnreachable()),
		},
	}
	for _, w := range all.GetWorkers() {
		e := &expected{Worker: w, aggregate: aggregateOf(w.GetAggregate())}
		for _, r := range w.GetRanks() {
			e.ranks = append(e.ranks, rankOf(r))
		}
		p.workers = append(p.workers, e)
	}
	return p
}

// filtered returns the part that a filter lets through.
func (p *picture) filtered(f client.Filter) *picture {
	part := *p
	part.workers, part.summary = nil, load.Summary{}
	for _, w := range p.workers {
		if selects(f, w.Worker) {
			part.workers = append(part.workers, w)
			part.summary.Add(load.Freshness(w.GetFreshness()), 1)
		}
	}
	part.complete = part.summary.Workers > 0 && part.summary.Fresh == part.summary.Workers
	return &part
}

// differs returns where an answer to GetSnapshot differs from the picture.
func (p *picture) differs(got *loadmonitorpb.GetSnapshotResponse) string {
	var d diffs
	other := pictureOf(got)
	d.equal("epoch", other.epoch, p.epoch)
	d.equal("version", other.version, p.version)
	d.equal("state", other.state, p.state)
	d.equal("summary", other.summary, p.summary)
	d.equal("complete", other.complete, p.complete)
	d.equal("workers", len(other.workers), len(p.workers))
	for i := range min(len(other.workers), len(p.workers)) {
		if got, want := other.workers[i].Worker, p.workers[i].Worker; !proto.Equal(got, want) {
			d.addf("worker %d: got %v, want %v", i, got, want)
		}
	}
	return d.String()
}

// watcherTruth is what the comparison must know of a watcher and its monitor.
type watcherTruth struct {
	withoutRanks bool
	zero         time.Time // where the monitor's clock truly stands at 0
}

// compare returns where a view differs from the snapshot of its version; "" nowhere. A view whose link is down has aged
// by the client's own clock: what it calls fresh must still be fresh in the snapshot, but not the other way round.
func compare(v *client.View, want *picture, o watcherTruth) string {
	var d diffs
	d.equal("epoch", v.Epoch, want.epoch)
	d.equal("version", v.Version, want.version)
	d.equal("state", v.State, want.state)
	if v.Link.Up {
		d.equal("summary", v.Summary, want.summary)
		d.equal("complete", v.Complete(), want.complete)
	}
	d.equal("workers", v.Len(), len(want.workers))
	if len(d) > 0 {
		return d.String()
	}
	clock := reference{view: v, zero: o.zero}
	i := 0
	for w := range v.All() {
		d.worker(&clock, w, want.workers[i], v, o)
		i++
	}
	return d.String()
}

// diffs collects differences as text.
type diffs []string

func (d *diffs) String() string { return strings.Join(*d, "\n") }

func (d *diffs) addf(format string, args ...any) { *d = append(*d, fmt.Sprintf(format, args...)) }

func (d *diffs) equal(what string, got, want any) {
	if got != want {
		d.addf("%s: view %v, snapshot %v", what, got, want)
	}
}

func (d *diffs) worker(clock *reference, w client.Worker, want *expected, v *client.View, o watcherTruth) {
	at := "worker " + want.GetId() + ": "
	type described struct {
		handle               uint32
		id, url, zone        string
		role                 load.Role
		transport            load.Transport
		transportReason      string
		source, lastError    string
		sequence             uint64
		restarts             uint32
		expected             int
		window               time.Duration
		models, anomalies    string
		aggregate            load.Aggregate
		byID, byHandle, find bool
	}
	got := described{
		w.Handle, w.ID, w.URL, w.Zone, w.Role, w.Transport, w.TransportReason, w.SourceInstance, w.LastError, w.Sequence, w.Restarts, w.ExpectedRanks,
		w.Window, fmt.Sprint(w.Models), fmt.Sprint(w.Anomalies), w.Aggregate, true, true, true,
	}
	expected := described{
		want.GetHandle(), want.GetId(), want.GetUrl(), want.GetZone(), load.Role(want.GetRole()),
		load.Transport(want.GetTransport()), want.GetTransportReason(), want.GetSourceInstance(), want.GetLastError(), want.GetSequence(),
		want.GetRestarts(), int(want.GetExpectedRanks()), time.Duration(want.GetFreshnessWindowMs()) * time.Millisecond,
		fmt.Sprint(want.GetModels()), fmt.Sprint(want.GetAnomalies()), want.aggregate, true, true, true,
	}
	byID, ok := v.Worker(want.GetId())
	got.byID = ok && byID == w
	byHandle, ok := v.ByHandle(want.GetHandle())
	got.byHandle = ok && byHandle == w
	found, ok := v.ByURL(want.GetUrl())
	got.find = ok && found.URL == want.GetUrl()
	if got != expected {
		d.addf("%s%s", at, cmp.Diff(expected, got, cmp.AllowUnexported(described{}, load.Aggregate{})))
	}
	if d.freshness(at, w.Freshness, want.GetFreshness(), v.Link.Up) {
		d.equal(at+"reason", w.Reason, want.GetReason())
		d.instant(at+"oldest_received_us", clock, w.OldestReceivedAt(), want.GetOldestReceivedUs())
	}
	if o.withoutRanks {
		d.equal(at+"ranks", len(w.Ranks), 0)
		return
	}
	d.equal(at+"ranks", len(w.Ranks), len(want.GetRanks()))
	for i := range min(len(w.Ranks), len(want.GetRanks())) {
		d.rank(clock, w, i, want, v.Link.Up)
	}
}

func (d *diffs) rank(clock *reference, w client.Worker, i int, worker *expected, up bool) {
	r, want := &w.Ranks[i], worker.GetRanks()[i]
	at := fmt.Sprintf("worker %s rank %d: ", w.ID, want.GetDpRank())
	if r.Load != worker.ranks[i] {
		d.addf("%s%s", at, cmp.Diff(worker.ranks[i], r.Load, cmp.AllowUnexported(load.RankLoad{})))
	}
	age, told := r.SampleAge()
	d.equal(at+"sample age told", told, want.HasSampleAgeMs())
	d.equal(at+"sample age", age, time.Duration(want.GetSampleAgeMs())*time.Millisecond)
	if d.freshness(at, r.Freshness, want.GetFreshness(), up) {
		d.equal(at+"reason", r.Reason, want.GetReason())
	}
	d.instant(at+"received_us", clock, w.ReceivedAt(i), want.GetReceivedUs())
}

// freshness compares the monitor's word with the view's and reports whether it still counts.
func (d *diffs) freshness(at string, got load.Freshness, want loadmonitorpb.Freshness, up bool) (counts bool) {
	if !up && got == load.Stale && want == loadmonitorpb.Freshness_FRESHNESS_FRESH {
		return false
	}
	d.equal(at+"freshness", got, load.Freshness(want))
	return up
}

// reference finds the one shift between a view's local times and the monitor's clock: it must be the same for all times
// of a view, to the microsecond, and what the client documents.
type reference struct {
	view *client.View
	zero time.Time

	shift time.Time // where the view puts the clock's 0, less the bound
}

func (d *diffs) instant(what string, clock *reference, got time.Time, want uint64) {
	if got.IsZero() || want == 0 {
		d.equal(what+" is told", !got.IsZero(), want != 0)
		return
	}
	shift := got.Add(-time.Duration(want) * time.Microsecond)
	if !clock.shift.IsZero() {
		if shift != clock.shift {
			d.addf("%s: differs by %v from the view's other times", what, shift.Sub(clock.shift))
		}
		return
	}
	clock.shift = shift
	// Not later than the moment, and earlier by no more than the bound; the monitor's clock ticks in microseconds.
	late, bound := shift.Sub(clock.zero), clock.view.LinkBound()
	if late > time.Microsecond || -late > bound+time.Microsecond {
		d.addf("%s: local time is off by %v, and the bound is %v", what, late, bound)
	}
}

// The figures and signals of load have the names of their fields, so these conversions share nothing with those under
// test.

func aggregateOf(m *loadmonitorpb.Aggregate) load.Aggregate {
	a := load.Aggregate{RankCount: m.GetRankCount()}
	get := fieldsOf(m)
	for f := range load.NumIntFigures {
		if v, ok := get(f.String()); ok {
			a.SetInt(f, v.Int())
		}
	}
	for f := range load.NumFloatFigures {
		if v, ok := get(f.String()); ok {
			a.SetFloat(f, v.Float())
		}
	}
	return a
}

func rankOf(m *loadmonitorpb.Rank) load.RankLoad {
	r := load.RankLoad{DPRank: m.GetDpRank()}
	get := fieldsOf(m)
	for s := range load.NumIntSignals {
		if v, ok := get(s.String()); ok {
			r.SetInt(s, v.Int())
		}
	}
	for s := range load.NumFloatSignals {
		if v, ok := get(s.String()); ok {
			r.SetFloat(s, v.Float())
		}
	}
	return r
}

// fieldsOf reads the fields of a message by name; ok is false for one that is not set.
func fieldsOf(m proto.Message) func(name string) (v protoreflect.Value, ok bool) {
	r := m.ProtoReflect()
	fields := r.Descriptor().Fields()
	return func(name string) (protoreflect.Value, bool) {
		f := fields.ByName(protoreflect.Name(name))
		if f == nil {
			panic(fmt.Sprintf("%s has no field %s", r.Descriptor().FullName(), name))
		}
		return r.Get(f), r.Has(f)
	}
}

// A field that the contract gains must be compared, too. Signals and figures are found by their names in load.
func TestCompare_KnowsEveryField(t *testing.T) {
	known := map[protoreflect.Name]string{
		"Worker": "handle id url role models zone transport freshness reason source_instance sequence restarts aggregate ranks " +
			"expected_ranks oldest_received_us freshness_window_ms anomalies last_error transport_reason",
		"Rank":      "dp_rank freshness received_us reason sample_age_ms",
		"Aggregate": "rank_count",
		"Summary":   "state workers fresh stale missing incomplete unreachable complete",
	}
	for s := range load.NumIntSignals {
		known["Rank"] += " " + s.String()
	}
	for s := range load.NumFloatSignals {
		known["Rank"] += " " + s.String()
	}
	for f := range load.NumIntFigures {
		known["Aggregate"] += " " + f.String()
	}
	for f := range load.NumFloatFigures {
		known["Aggregate"] += " " + f.String()
	}
	for name, names := range known {
		fields := loadmonitorpb.File_loadmonitor_v1_snapshot_proto.Messages().ByName(name).Fields()
		for i := range fields.Len() {
			if field := string(fields.Get(i).Name()); !slices.Contains(strings.Fields(names), field) {
				t.Errorf("%s.%s is not compared with what views show", name, field)
			}
		}
	}
}
