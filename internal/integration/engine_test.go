package integration

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// engine is one place in the fleet, whether a worker is registered for it or not: what it sends, and what the monitor
// must make of it by the rules.
type engine struct {
	spec       load.Worker
	registered bool

	// What it sends.
	source  string
	sources int
	seq     uint64
	stream  *load.Stream
	older   []older
	values  map[int32]load.RankLoad // as sent last, by rank
	sockets map[int32]*socket       // ZMQ

	truth   truth
	refused bool // the newest report was, for its values
}

// older is a stream that was replaced and that the engine forgot to close.
type older struct {
	stream *load.Stream
	source string
}

type socket struct {
	stream *load.Stream
	seq    int64
}

// truth is what must be known of the worker.
type truth struct {
	unsure      bool // events raced: nothing is claimed until the next report that is surely the newest
	unreachable bool
	lastError   string
	source      string
	retired     []string // replaced sources, which must not come back (rule ID4)
	ranks       map[int32]rankTruth
}

type rankTruth struct {
	load     load.RankLoad
	received time.Time
	stale    bool // whatever the time
}

// forget is what happens when registration removes the worker or makes another of it.
func (e *engine) forget() { e.truth, e.refused = truth{}, false }

// doubt is what is left to say after events that raced.
func (e *engine) doubt() { e.truth = truth{unsure: true} }

// took notes a pushed report that was accepted now.
func (e *engine) took(r *load.Report, now time.Time) {
	t := truth{
		ranks: e.truth.ranks, unreachable: r.Status == load.StatusUnreachable, lastError: r.LastError,
		source: r.SourceInstance, retired: e.truth.retired,
	}
	if e.truth.source != "" && e.truth.source != t.source {
		t.retired = append(t.retired, e.truth.source)
	}
	t.unsure = e.truth.unsure && t.unreachable // what stays of the ranks is not known yet
	if !t.unreachable {
		t.ranks = make(map[int32]rankTruth, len(r.Ranks))
		old := func(l load.RankLoad) bool {
			return r.ReportTimeUnixMs > 0 && l.SnapshotTimeUnixMs > 0 && r.ReportTimeUnixMs-l.SnapshotTimeUnixMs > 3000
		}
		for _, l := range r.Ranks {
			stale := starting(&l) || old(l) || r.Status == load.StatusStale && !slices.ContainsFunc(r.Ranks, old)
			t.ranks[l.DPRank] = rankTruth{l, now, stale}
		}
	}
	e.truth = t
}

func starting(l *load.RankLoad) bool {
	_, tokens := l.Int(load.MaxTotalNumTokens)
	_, requests := l.Int(load.MaxRunningRequests)
	return !tokens || !requests
}

// tookRank notes a message of one rank that was accepted now.
func (e *engine) tookRank(r *load.RankReport, now time.Time) {
	ranks := maps.Clone(e.truth.ranks)
	if ranks == nil {
		ranks = make(map[int32]rankTruth)
	}
	ranks[r.Load.DPRank] = rankTruth{r.Load, now, !r.CapacityOptional && starting(&r.Load)}
	e.truth.ranks = ranks
}

// check compares a settled snapshot with the truth. slack is how long a change may take until it is published, and marks
// how long a refresh mark may.
func (e *engine) check(d *diffs, w *loadmonitorpb.Worker, now, zero time.Time, window, slack, marks time.Duration) {
	if e.truth.unsure {
		return
	}
	at := "worker " + e.spec.ID + " by the rules: "
	d.equal(at+"source instance", w.GetSourceInstance(), e.truth.source)
	d.equal(at+"last error", w.GetLastError(), e.truth.lastError)
	reported, stale := 0, 0
	for _, n := range slices.Sorted(maps.Keys(e.truth.ranks)) {
		truth := e.truth.ranks[n]
		reported++
		i := slices.IndexFunc(w.GetRanks(), func(r *loadmonitorpb.Rank) bool { return r.GetDpRank() == n })
		if i < 0 {
			d.addf("%srank %d is not there", at, n)
			continue
		}
		r := w.GetRanks()[i]
		end := truth.received.Add(window)
		switch {
		case e.truth.unreachable || truth.stale || now.After(end.Add(slack)):
			stale++
			d.equal(at+"freshness of a rank that is over", r.GetFreshness(), loadmonitorpb.Freshness_FRESHNESS_STALE)
		case now.Before(end):
			d.equal(at+"freshness of a rank within its window", r.GetFreshness(), loadmonitorpb.Freshness_FRESHNESS_FRESH)
		default:
			return // on the edge: either is right, and the worker's freshness follows from it
		}
		running, _ := truth.load.Int(load.NumRunningReqs)
		waiting, _ := truth.load.Int(load.NumWaitingReqs)
		d.equal(fmt.Sprintf("%srunning of rank %d", at, n), r.GetNumRunningReqs(), running)
		d.equal(fmt.Sprintf("%swaiting of rank %d", at, n), r.GetNumWaitingReqs(), waiting)

		shown := zero.Add(time.Duration(r.GetReceivedUs()) * time.Microsecond)
		if shown.After(truth.received.Add(2 * time.Microsecond)) {
			d.addf("%srank %d is shown as received %v later than it was", at, n, shown.Sub(truth.received))
		}
		fresh := r.GetFreshness() == loadmonitorpb.Freshness_FRESHNESS_FRESH // marks are about these only
		if fresh && e.spec.Transport == load.TransportPush && now.Sub(truth.received) > marks && truth.received.Sub(shown) > 2*time.Microsecond {
			d.addf("%srank %d is shown as received %v before it was, %v ago", at, n, truth.received.Sub(shown), now.Sub(truth.received))
		}
	}
	want := loadmonitorpb.Freshness_FRESHNESS_FRESH
	switch {
	case e.truth.unreachable:
		want = loadmonitorpb.Freshness_FRESHNESS_UNREACHABLE
	case reported == 0:
		want = loadmonitorpb.Freshness_FRESHNESS_MISSING
	case e.spec.ExpectedRanks > 0 && reported != e.spec.ExpectedRanks:
		want = loadmonitorpb.Freshness_FRESHNESS_INCOMPLETE
	case stale > 0:
		want = loadmonitorpb.Freshness_FRESHNESS_STALE
	}
	d.equal(at+"freshness", w.GetFreshness(), want)
	d.equal(at+"a refused report is shown", strings.Contains(w.GetReason(), "newest report refused"), e.refused)
	if want != loadmonitorpb.Freshness_FRESHNESS_FRESH && w.GetReason() == "" {
		d.addf("%sno reason", at)
	}
}

// report makes the next report of the engine. Most are sane; sane says whether this one is.
func (e *engine) report(r *rand.Rand, now time.Time) (report *load.Report, sane bool) {
	e.seq += 1 + uint64(r.IntN(3))
	report = &load.Report{
		SourceInstance:   e.source,
		Sequence:         e.seq,
		ReportTimeUnixMs: now.UnixMilli(),
		Status:           load.StatusHealthy,
		Claim:            load.Claim{Address: e.spec.URL, Role: e.spec.Role},
	}
	if len(e.spec.Models) > 0 && r.IntN(2) == 0 {
		report.Claim.Model = e.spec.Models[0]
	}
	numbers := e.numbers(r)
	switch p := r.IntN(100); {
	case p < 40 && sameNumbers(e.values, numbers): // unchanged
	case p < 80:
		n := numbers[r.IntN(len(numbers))]
		e.values = maps.Clone(e.values)
		if !sameNumbers(e.values, numbers) {
			e.values = make(map[int32]load.RankLoad)
			for _, n := range numbers {
				e.values[n] = randomLoad(r, n)
			}
		}
		e.values[n] = randomLoad(r, n)
	case p < 86:
		report.Status = load.StatusStale
	case p < 92:
		report.Status = load.StatusUnreachable
		report.LastError = []string{"", "scheduler does not answer"}[r.IntN(2)]
		return report, true
	default:
		return e.insane(r, report), false
	}
	for _, n := range slices.Sorted(maps.Keys(e.values)) {
		l := e.values[n]
		switch r.IntN(12) {
		case 0:
			l.SnapshotTimeUnixMs = 0
		case 1:
			l.SnapshotTimeUnixMs = now.UnixMilli() - 10_000
		default:
			l.SnapshotTimeUnixMs = now.UnixMilli() - int64(r.IntN(500))
		}
		report.Ranks = append(report.Ranks, l)
	}
	if len(report.Ranks) == 0 {
		return report, false
	}
	if r.IntN(4) == 0 {
		slices.Reverse(report.Ranks)
	}
	return report, true
}

// insane makes a report that is refused for its values (rules SEQ1 and VAL2).
func (e *engine) insane(r *rand.Rand, report *load.Report) *load.Report {
	bad := randomLoad(r, 0)
	report.Ranks = []load.RankLoad{bad}
	switch r.IntN(6) {
	case 0:
		report.Sequence = 0
	case 1:
		report.Sequence = math.MaxUint64
	case 2:
		report.Ranks = append(report.Ranks, bad)
	case 3:
		report.Ranks[0].SetInt(load.NumUsedTokens, -1)
	case 4:
		report.Ranks[0].SetFloat(load.GenThroughput, math.Inf(1))
	default:
		report.Ranks = nil
	}
	return report
}

// numbers returns the rank numbers of the next report: usually those of the last one.
func (e *engine) numbers(r *rand.Rand) []int32 {
	if len(e.values) > 0 && r.IntN(8) > 0 {
		return slices.Sorted(maps.Keys(e.values))
	}
	n := max(1, e.spec.ExpectedRanks)
	if r.IntN(4) == 0 {
		n = 1 + r.IntN(4)
	}
	first := int32(0)
	if r.IntN(4) == 0 {
		first = int32(r.IntN(5))
	}
	list := make([]int32, n)
	for i := range list {
		list[i] = first + int32(i)
	}
	return list
}

func sameNumbers(values map[int32]load.RankLoad, numbers []int32) bool {
	return slices.Equal(slices.Sorted(maps.Keys(values)), numbers)
}

// randomLoad tells some signals of a rank; few different values, so that equal ones are frequent.
func randomLoad(r *rand.Rand, number int32) load.RankLoad {
	l := load.RankLoad{DPRank: number}
	l.SetInt(load.NumRunningReqs, int64(r.IntN(3)))
	l.SetInt(load.NumWaitingReqs, int64(r.IntN(3)))
	if r.IntN(12) > 0 {
		l.SetInt(load.MaxTotalNumTokens, 1000)
		l.SetInt(load.MaxRunningRequests, 2)
	}
	for s := range load.NumIntSignals {
		if _, ok := l.Int(s); !ok && s != load.MaxTotalNumTokens && s != load.MaxRunningRequests && r.IntN(2) == 0 {
			l.SetInt(s, int64(r.IntN(1200)))
		}
	}
	for s := range load.NumFloatSignals {
		if r.IntN(2) == 0 {
			l.SetFloat(s, float64(r.IntN(5))/4)
			if s == load.TokenUsage && r.IntN(6) == 0 {
				l.SetFloat(s, -1) // unknown
			}
		}
	}
	return l
}
