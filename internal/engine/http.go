package engine

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/reporter"
)

// handler serves what a monitor asks of an engine. It belongs to one life. An engine that publishes is one without the
// push feature: it has no such path.
func (e *engine) handler(rep *reporter.Reporter, newest *latest) http.Handler {
	mux := http.NewServeMux()
	if rep != nil {
		mux.Handle(reporter.Path, rep.Handler())
	}
	mux.HandleFunc("GET /server_info", e.withKey(e.serveInfo))
	mux.HandleFunc("GET /v1/loads", e.withKey(func(w http.ResponseWriter, req *http.Request) { serveLoads(w, req, newest) }))
	mux.HandleFunc("GET /health", e.serveHealth)
	return mux
}

// withKey asks for the API key where one is configured.
func (e *engine) withKey(h http.HandlerFunc) http.HandlerFunc {
	if e.opts.APIKey == "" {
		return h
	}
	want := sha256.Sum256([]byte("Bearer " + e.opts.APIKey))
	return func(w http.ResponseWriter, req *http.Request) {
		got := sha256.Sum256([]byte(req.Header.Get("Authorization")))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			answer(w, http.StatusUnauthorized, refusal{"bearer token is missing or wrong: send the engine's API key"})
			return
		}
		h(w, req)
	}
}

// serverInfo is the part of a real engine's /server_info that says what it is, without the keys that hold secrets.
type serverInfo struct {
	Version            string `json:"version"`
	ModelPath          string `json:"model_path"`
	ServedModelName    string `json:"served_model_name"`
	DPSize             int    `json:"dp_size"`
	TPSize             int    `json:"tp_size"`
	DisaggregationMode string `json:"disaggregation_mode"` // "null", "prefill" or "decode"
	MaxRunningRequests int    `json:"max_running_requests"`
	MaxTotalNumTokens  int64  `json:"max_total_num_tokens"`
	ContextLength      int    `json:"context_length"`
	PageSize           int    `json:"page_size"`
	Host               string `json:"host"`
	Status             string `json:"status"`

	KVEvents *kvEvents `json:"kv_events,omitempty"` // of engines that publish
}

// kvEvents says where the load is published. KV events themselves are not simulated, so where a real engine publishes
// them is left out.
type kvEvents struct {
	Publisher            string `json:"publisher"`
	EndpointHost         string `json:"endpoint_host"`
	DPSize               int    `json:"dp_size"`
	LoadEndpointPortBase int    `json:"load_endpoint_port_base"` // rank r: base + r
	LoadTopic            string `json:"load_topic,omitempty"`    // absent: an empty one
}

func (e *engine) serveInfo(w http.ResponseWriter, _ *http.Request) {
	mode := "null"
	if e.role != load.RoleRegular {
		mode = e.role.String()
	}
	p := profiles[e.role]
	status := "ready"
	if e.condition() == Starting {
		status = "starting"
	}
	answer(w, http.StatusOK, serverInfo{
		Version:            "simulated",
		ModelPath:          "/models/" + e.opts.Model,
		ServedModelName:    e.opts.Model,
		DPSize:             e.opts.Ranks,
		TPSize:             e.opts.Ranks,
		DisaggregationMode: mode,
		MaxRunningRequests: p.maxRunning,
		MaxTotalNumTokens:  p.maxTokens,
		ContextLength:      int(p.maxPrompt() + p.maxOutput),
		PageSize:           1,
		Host:               e.opts.Host,
		Status:             status,
		KVEvents:           e.advertised(),
	})
}

func (e *engine) serveHealth(w http.ResponseWriter, _ *http.Request) {
	if e.condition() == Starting {
		answer(w, http.StatusServiceUnavailable, refusal{"the engine is starting: try again"})
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (e *engine) condition() Condition {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.conditionLocked(time.Now())
}

// loadsPage is the answer of /v1/loads. Times are seconds since 1970 by this machine's clock.
type loadsPage struct {
	Timestamp float64   `json:"timestamp"`
	DPSize    int       `json:"dp_rank_count"`
	Loads     []loadRow `json:"loads"`
}

type loadRow struct {
	DPRank                   int32   `json:"dp_rank"`
	Timestamp                float64 `json:"timestamp"` // of the sample
	NumRunningReqs           int64   `json:"num_running_reqs"`
	NumWaitingReqs           int64   `json:"num_waiting_reqs"`
	NumWaitingUncachedTokens int64   `json:"num_waiting_uncached_tokens"`
	NumUsedTokens            int64   `json:"num_used_tokens"`
	NumTotalTokens           int64   `json:"num_total_tokens"`
	MaxTotalNumTokens        int64   `json:"max_total_num_tokens"`
	MaxRunningRequests       int64   `json:"max_running_requests"`
	TokenUsage               float64 `json:"token_usage"`
	GenThroughput            float64 `json:"gen_throughput"`
	CacheHitRate             float64 `json:"cache_hit_rate"`
	Utilization              float64 `json:"utilization"` // -1: unknown
}

// serveLoads answers from the newest collection, however old: a hung scheduler does not show in the status.
func serveLoads(w http.ResponseWriter, req *http.Request, newest *latest) {
	for section := range strings.SplitSeq(req.URL.Query().Get("include"), ",") {
		if section != "" && section != "core" && section != "all" {
			answer(w, http.StatusBadRequest, refusal{"include names a section that is not served: want core or all"})
			return
		}
	}
	page := loadsPage{Timestamp: unixSeconds(time.Now().UnixMilli()), Loads: []loadRow{}}
	if s := newest.get(); s != nil {
		for i := range s.ranks {
			page.Loads = append(page.Loads, newLoadRow(&s.ranks[i]))
		}
	}
	page.DPSize = len(page.Loads)
	answer(w, http.StatusOK, page)
}

func newLoadRow(r *load.RankLoad) loadRow {
	row := loadRow{DPRank: r.DPRank, Timestamp: unixSeconds(r.SnapshotTimeUnixMs)}
	row.NumRunningReqs, _ = r.Int(load.NumRunningReqs)
	row.NumWaitingReqs, _ = r.Int(load.NumWaitingReqs)
	row.NumWaitingUncachedTokens, _ = r.Int(load.NumWaitingUncachedTokens)
	row.NumUsedTokens, _ = r.Int(load.NumUsedTokens)
	row.NumTotalTokens, _ = r.Int(load.NumTotalTokens)
	row.MaxTotalNumTokens, _ = r.Int(load.MaxTotalNumTokens)
	row.MaxRunningRequests, _ = r.Int(load.MaxRunningRequests)
	row.TokenUsage, _ = r.Float(load.TokenUsage)
	row.GenThroughput, _ = r.Float(load.GenThroughput)
	row.CacheHitRate, _ = r.Float(load.CacheHitRate)
	var told bool
	if row.Utilization, told = r.Float(load.Utilization); !told {
		row.Utilization = -1
	}
	return row
}

func unixSeconds(ms int64) float64 { return float64(ms) / 1000 }

// refusal is the body of every answer that is not a success.
type refusal struct {
	Detail string `json:"detail"`
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	body := json.NewEncoder(w)
	body.SetEscapeHTML(false) // people read it, and no browser takes it for a page
	_ = body.Encode(v)        // the peer may have left
}
