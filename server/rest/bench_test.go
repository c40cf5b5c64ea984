package rest

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/loadmonitor/loadmonitor/load"
)

// The same JSON as plain structs, for encoding/json to compare with.
type (
	snapshotStruct struct {
		Enabled    bool           `json:"enabled"`
		Epoch      string         `json:"epoch"`
		Version    uint64         `json:"version"`
		CapturedAt string         `json:"captured_at"`
		Summary    summaryStruct  `json:"summary"`
		Workers    []workerStruct `json:"workers"`
	}
	summaryStruct struct {
		State       string `json:"state"`
		Workers     int    `json:"workers"`
		Fresh       int    `json:"fresh"`
		Stale       int    `json:"stale"`
		Missing     int    `json:"missing"`
		Incomplete  int    `json:"incomplete"`
		Unreachable int    `json:"unreachable"`
		Complete    bool   `json:"complete"`
	}
	workerStruct struct {
		WorkerID          string          `json:"worker_id"`
		URL               string          `json:"url"`
		Mode              *string         `json:"mode"`
		ModelIDs          []string        `json:"model_ids"`
		Zone              *string         `json:"zone"`
		Transport         *string         `json:"transport"`
		TransportReason   *string         `json:"transport_reason"`
		Freshness         string          `json:"freshness"`
		Reason            *string         `json:"reason"`
		Anomalies         []string        `json:"anomalies"`
		SourceInstanceID  *string         `json:"source_instance_id"`
		SequenceID        *uint64         `json:"sequence_id"`
		ReportTimeUnixMs  *int64          `json:"report_time_unix_ms"`
		LastError         *string         `json:"last_error"`
		ReceivedAt        *string         `json:"received_at"`
		ReceivedAgeMs     *int64          `json:"received_age_ms"`
		ExpiresAt         *string         `json:"expires_at"`
		Restarts          uint32          `json:"restarts"`
		ExpectedRanks     *int            `json:"expected_ranks"`
		FreshnessWindowMs *int64          `json:"freshness_window_ms"`
		Aggregate         aggregateStruct `json:"aggregate"`
		Ranks             []rankStruct    `json:"ranks"`
	}
	aggregateStruct struct {
		RankCount                uint32   `json:"rank_count"`
		NumRunningReqs           *int64   `json:"num_running_reqs"`
		NumWaitingReqs           *int64   `json:"num_waiting_reqs"`
		NumWaitingUncachedTokens *int64   `json:"num_waiting_uncached_tokens"`
		NumUsedTokens            *int64   `json:"num_used_tokens"`
		NumTotalTokens           *int64   `json:"num_total_tokens"`
		MaxTotalNumTokens        *int64   `json:"max_total_num_tokens"`
		MaxRunningRequests       *int64   `json:"max_running_requests"`
		TotalRequests            *int64   `json:"total_requests"`
		FreeTokens               *int64   `json:"free_tokens"`
		AvailableSlots           *int64   `json:"available_slots"`
		MaxRankWaitingReqs       *int64   `json:"max_rank_waiting_reqs"`
		GenThroughput            *float64 `json:"gen_throughput"`
		QueuePressure            *float64 `json:"queue_pressure"`
		RequestUtilization       *float64 `json:"request_utilization"`
		WeightedTokenUsage       *float64 `json:"weighted_token_usage"`
		MaxRankTokenUsage        *float64 `json:"max_rank_token_usage"`
		PrefillRate              *float64 `json:"prefill_rate"`
		PrefillQueueMs           *float64 `json:"prefill_queue_ms"`
	}
	rankStruct struct {
		DPRank                     int32    `json:"dp_rank"`
		Freshness                  string   `json:"freshness"`
		Reason                     *string  `json:"reason"`
		ReceivedAt                 *string  `json:"received_at"`
		ReceivedAgeMs              *int64   `json:"received_age_ms"`
		SampleAgeMs                *int64   `json:"sample_age_ms"`
		SnapshotTimeUnixMs         *int64   `json:"snapshot_time_unix_ms"`
		NumRunningReqs             *int64   `json:"num_running_reqs"`
		NumWaitingReqs             *int64   `json:"num_waiting_reqs"`
		NumWaitingUncachedTokens   *int64   `json:"num_waiting_uncached_tokens"`
		NumUsedTokens              *int64   `json:"num_used_tokens"`
		NumTotalTokens             *int64   `json:"num_total_tokens"`
		MaxTotalNumTokens          *int64   `json:"max_total_num_tokens"`
		MaxRunningRequests         *int64   `json:"max_running_requests"`
		TotalPrefillUncachedTokens *int64   `json:"total_prefill_uncached_tokens"`
		TotalPrefillBusyUs         *int64   `json:"total_prefill_busy_us"`
		TokenUsage                 *float64 `json:"token_usage"`
		GenThroughput              *float64 `json:"gen_throughput"`
		CacheHitRate               *float64 `json:"cache_hit_rate"`
		Utilization                *float64 `json:"utilization"`
		PrefillThroughput          *float64 `json:"prefill_throughput"`
	}
)

// The writer and encoding/json make the same bytes of the same snapshot; with nothing in it that encoding/json escapes
// for HTML.
func TestSnapshotJSON_IsWhatEncodingJSONWrites(t *testing.T) {
	for name, s := range goldens() {
		body := appendSnapshot(nil, s)
		want, err := json.Marshal(asStruct(t, body))
		if err != nil {
			t.Fatal(err)
		}
		if string(body) != string(want)+"\n" {
			t.Errorf("%s:\n%s\nencoding/json:\n%s", name, body, want)
		}
	}
}

func asStruct(t testing.TB, body []byte) *snapshotStruct {
	t.Helper()
	v := new(snapshotStruct)
	if err := json.Unmarshal(body, v); err != nil {
		t.Fatal(err)
	}
	return v
}

func largeFleet(workers, ranks int) *load.Snapshot {
	var entries []*load.Entry
	for i := range workers {
		e := known(workerID(i), ranks)
		for r := range e.Ranks {
			e.Ranks[r].Load.SetFloat(load.TokenUsage, float64(i*ranks+r)/7919)
			e.Ranks[r].Load.SetInt(load.NumUsedTokens, int64(i*ranks+r)*104729)
		}
		entries = append(entries, e)
	}
	return snapshot(1, entries...)
}

// BenchmarkRender compares the writer with encoding/json on a struct that is filled already.
func BenchmarkRender(b *testing.B) {
	for _, workers := range []int{10, 1000} {
		s := largeFleet(workers, 8)
		first := render(s, nil)
		b.Run(fmt.Sprintf("workers=%d/ranks=8/writer", workers), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(first.body)))
			for b.Loop() {
				render(s, first)
			}
		})
		b.Run(fmt.Sprintf("workers=%d/ranks=8/encoding-json", workers), func(b *testing.B) {
			v := asStruct(b, first.body)
			b.ReportAllocs()
			b.SetBytes(int64(len(first.body)))
			for b.Loop() {
				if _, err := json.Marshal(v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkGzip is what the first reader of a version who wants it compressed waits for.
func BenchmarkGzip(b *testing.B) {
	body := render(largeFleet(1000, 8), nil).body
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	n := 0
	for b.Loop() {
		n = len(compress(body))
	}
	b.ReportMetric(float64(len(body))/float64(n), "x-smaller")
}
