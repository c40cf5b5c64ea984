package rest

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loadmonitor/loadmonitor/load"
)

var update = flag.Bool("update", false, "write testdata anew")

// The goldens hold bodies as written, spread over lines; they are made by this test with -update and read by people.
func TestSnapshotJSON_Golden(t *testing.T) {
	for name, s := range goldens() {
		t.Run(name, func(t *testing.T) {
			body := appendSnapshot(nil, s)
			if n := bytes.Count(body, []byte("\n")); n != 1 || !bytes.HasSuffix(body, []byte("\n")) {
				t.Errorf("body has %d newlines, want one at its end: it is a line of a watch too", n)
			}
			var got bytes.Buffer
			if err := json.Indent(&got, body, "", "  "); err != nil {
				t.Fatalf("%v in %s", err, body)
			}
			file := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		})
	}
}

// goldens returns the snapshots behind testdata: everything told, nothing told, and what lies between.
func goldens() map[string]*load.Snapshot {
	warming := snapshot(1)
	warming.State = load.FleetWarmingUp

	bare := &load.Entry{WorkerStatus: &load.WorkerStatus{ // every optional thing is unknown
		Worker: &load.Worker{ID: "bare", URL: "http://bare:80"}, Freshness: load.Incomplete,
		Ranks: []load.Rank{{Freshness: load.Stale, SampleAgeMs: -1}},
	}}
	return map[string]*load.Snapshot{
		"warming_up": warming,
		"no_workers": snapshot(2),
		"known":      snapshot(3, known("10.9.0.5:30000", 2)),
		"unknown":    snapshot(4, silent("10.9.0.6:30000", 2), bare),
	}
}

// decode reads a body as a script would.
func decode(t *testing.T, s *load.Snapshot) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(appendSnapshot(nil, s), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func workers(t *testing.T, s *load.Snapshot) []map[string]any {
	t.Helper()
	var out []map[string]any
	for _, w := range decode(t, s)["workers"].([]any) {
		out = append(out, w.(map[string]any))
	}
	return out
}

func ranks(w map[string]any) []map[string]any {
	var out []map[string]any
	for _, r := range w["ranks"].([]any) {
		out = append(out, r.(map[string]any))
	}
	return out
}

func TestSnapshotJSON_ExistingScriptsKeepWorking(t *testing.T) {
	v := decode(t, snapshot(1, known("w", 1)))
	if v["enabled"] != true {
		t.Errorf("enabled is %v, want true", v["enabled"])
	}
	w := v["workers"].([]any)[0].(map[string]any)
	if w["freshness"] != "fresh" || w["mode"] != "decode" {
		t.Errorf("freshness %v and mode %v, want fresh and decode", w["freshness"], w["mode"])
	}
	if n, ok := ranks(w)[0]["num_running_reqs"].(float64); !ok || n != 1 {
		t.Errorf("num_running_reqs is %v, want the number 1", ranks(w)[0]["num_running_reqs"])
	}
}

// Case J1: integers are plain numbers and exact.
func TestSnapshotJSON_IntegersAreExact(t *testing.T) {
	for _, want := range []int64{0, 1<<53 + 1, math.MaxInt64} {
		e := known("w", 1)
		e.Ranks[0].Load.SetInt(load.MaxTotalNumTokens, want)
		e.Aggregate.SetInt(load.SumMaxTotalTokens, want)
		e.NewestSequence = uint64(max(1, want))
		e.ReportTimeUnixMs = max(1, want)
		var got struct {
			Workers []struct {
				SequenceID       int64 `json:"sequence_id"`
				ReportTimeUnixMs int64 `json:"report_time_unix_ms"`
				Aggregate, Ranks json.RawMessage
			}
		}
		if err := json.Unmarshal(appendSnapshot(nil, snapshot(1, e)), &got); err != nil {
			t.Fatal(err)
		}
		type capacity struct {
			Tokens int64 `json:"max_total_num_tokens"`
		}
		var sum capacity
		var each []capacity
		if err := json.Unmarshal(got.Workers[0].Aggregate, &sum); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(got.Workers[0].Ranks, &each); err != nil {
			t.Fatal(err)
		}
		w := got.Workers[0]
		if sum.Tokens != want || each[0].Tokens != want || w.SequenceID != max(1, want) || w.ReportTimeUnixMs != max(1, want) {
			t.Errorf("%d became %d (aggregate), %d (rank), %d (sequence), %d (time)", want, sum.Tokens, each[0].Tokens, w.SequenceID, w.ReportTimeUnixMs)
		}
	}
}

// Case C5 and rule VAL1: what was never told is null, nothing a router could sort by.
func TestSnapshotJSON_MissingIsNullNotZero(t *testing.T) {
	e := silent("w", 4)
	e.Freshness = load.Incomplete
	e.Ranks[2] = rank(2, time.Second)
	e.Aggregate.RankCount = 1
	w := workers(t, snapshot(1, e))[0]
	for key, v := range w["aggregate"].(map[string]any) {
		if key == "rank_count" {
			if v != 1.0 {
				t.Errorf("rank_count is %v, want 1", v)
			}
		} else if v != nil {
			t.Errorf("aggregate %s is %v, want null", key, v)
		}
	}
	for i, r := range ranks(w) {
		told := 0
		for s := range load.NumIntSignals {
			if v, there := r[s.String()]; !there {
				t.Errorf("rank %d has no key %s", i, s)
			} else if v != nil {
				told++
			}
		}
		want := 0
		if i == 2 {
			want = int(load.NumIntSignals)
		}
		if told != want {
			t.Errorf("rank %d tells %d signals, want %d", i, told, want)
		}
	}
}

// Case E3: ranks are keyed by their own number. Case D4: the peak can be read without guessing.
func TestSnapshotJSON_RanksKeepTheirNumbersAndTheWorstIsVisible(t *testing.T) {
	e := known("w", 4)
	for i, n := range []int32{4, 5, 6, 9} {
		e.Ranks[i].Load.DPRank = n
		e.Ranks[i].Load.SetInt(load.NumWaitingReqs, []int64{0, 0, 11, 0}[i])
		e.Ranks[i].Load.SetFloat(load.TokenUsage, []float64{0, 0, 0.99, 0}[i])
	}
	e.Aggregate.SetInt(load.MaxRankWaitingReqs, 11)
	e.Aggregate.SetFloat(load.MaxRankTokenUsage, 0.99)
	w := workers(t, snapshot(1, e))[0]
	var got []any
	for _, r := range ranks(w) {
		got = append(got, r["dp_rank"], r["num_waiting_reqs"], r["token_usage"])
	}
	want := []any{4.0, 0.0, 0.0, 5.0, 0.0, 0.0, 6.0, 11.0, 0.99, 9.0, 0.0, 0.0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("dp_rank, num_waiting_reqs, token_usage (-want +got):\n%s", diff)
	}
	aggregate := w["aggregate"].(map[string]any)
	if aggregate["max_rank_waiting_reqs"] != 11.0 || aggregate["max_rank_token_usage"] != 0.99 {
		t.Errorf("peaks are %v and %v, want 11 and 0.99", aggregate["max_rank_waiting_reqs"], aggregate["max_rank_token_usage"])
	}
}

// Rule VAL5: ages are as of captured_at, whatever the time is, and received_at says the same as received_age_ms.
func TestSnapshotJSON_ReceiptOfAWorker(t *testing.T) {
	stale := func(r load.Rank) load.Rank { r.Freshness = load.Stale; return r }
	for _, tt := range []struct {
		name  string
		ranks []load.Rank
		mark  time.Duration // of the last refresh mark, before the capture; 0: none
		age   any
	}{
		{"oldest of the fresh ranks", []load.Rank{rank(0, 100*time.Millisecond), rank(1, 900*time.Millisecond)}, 0, 900.0},
		{"stale ranks do not count beside a fresh one", []load.Rank{stale(rank(0, 9*time.Second)), rank(1, time.Second)}, 0, 1000.0},
		{"newest receipt when none is fresh", []load.Rank{stale(rank(0, 9*time.Second)), stale(rank(1, 7*time.Second))}, 0, 7000.0},
		{"a mark makes fresh ranks younger", []load.Rank{rank(0, 2*time.Second), rank(1, 2500*time.Millisecond)}, 30 * time.Millisecond, 30.0},
		{"a mark says nothing of stale ranks", []load.Rank{stale(rank(0, 9*time.Second))}, 30 * time.Millisecond, 9000.0},
		{"part of a millisecond is dropped", []load.Rank{rank(0, 1999*time.Microsecond)}, 0, 1.0},
		{"nothing received", nil, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := known("w", 1)
			e.Ranks = tt.ranks
			if tt.mark != 0 {
				e.Refreshed, e.RefreshedVersion = ago(tt.mark), 1
			}
			w := workers(t, snapshot(1, e))[0]
			if w["received_age_ms"] != tt.age {
				t.Fatalf("received_age_ms is %v, want %v", w["received_age_ms"], tt.age)
			}
			if tt.age == nil {
				if w["received_at"] != nil || w["expires_at"] != nil {
					t.Errorf("received_at %v and expires_at %v, want null", w["received_at"], w["expires_at"])
				}
				return
			}
			received := captured.Truncate(time.Millisecond).Add(-time.Duration(tt.age.(float64)) * time.Millisecond)
			const layout = "2006-01-02T15:04:05.000Z"
			if got, want := w["received_at"], received.Format(layout); got != want {
				t.Errorf("received_at is %v, want %s", got, want)
			}
			if got, want := w["expires_at"], received.Add(3*time.Second).Format(layout); got != want {
				t.Errorf("expires_at is %v, want %s", got, want)
			}
		})
	}
}

func TestSnapshotJSON_SequenceZeroIsASequenceOverZMQOnly(t *testing.T) {
	for _, tt := range []struct {
		transport load.Transport
		ranks     []load.Rank
		want      any
	}{
		{load.TransportPush, []load.Rank{rank(0, 0)}, nil},
		{load.TransportPoll, []load.Rank{rank(0, 0)}, nil},
		{load.TransportZMQ, []load.Rank{rank(0, 0)}, 0.0},
		{load.TransportZMQ, nil, nil},
	} {
		e := known("w", 1)
		e.Worker.Transport, e.Ranks, e.NewestSequence = tt.transport, tt.ranks, 0
		if got := workers(t, snapshot(1, e))[0]["sequence_id"]; got != tt.want {
			t.Errorf("%v with %d ranks: sequence_id is %v, want %v", tt.transport, len(tt.ranks), got, tt.want)
		}
	}
}

// Rule SNAP2.
func TestSnapshotJSON_WorkersStandInOrderOfID(t *testing.T) {
	var entries []*load.Entry
	for i := range 200 {
		entries = append(entries, silent(workerID(i), 1))
	}
	list := workers(t, snapshot(1, entries...))
	if len(list) != 200 {
		t.Fatalf("%d workers, want 200", len(list))
	}
	for i, w := range list {
		if w["worker_id"] != workerID(i) {
			t.Fatalf("worker %d is %v, want %s", i, w["worker_id"], workerID(i))
		}
	}
}
