package engine

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestFleet_ServesWhatARealEngineServes(t *testing.T) {
	t.Parallel()
	f := startFleet(t, Options{Workers: 3, Ranks: 2, Model: "m1", Roles: allRoles})
	for i, mode := range []string{"null", "prefill", "decode"} {
		url := f.URLs()[i]
		var info map[string]any
		if code := get(t, url+"/server_info", &info); code != http.StatusOK {
			t.Fatalf("server_info: %d", code)
		}
		for key, want := range map[string]any{"dp_size": 2.0, "served_model_name": "m1", "model_path": "/models/m1", "disaggregation_mode": mode} {
			if info[key] != want {
				t.Errorf("%s is %v, want %v", key, info[key], want)
			}
		}
		for _, key := range []string{"kv_events", "load_reporter_port"} {
			if _, there := info[key]; there {
				t.Errorf("%s is advertised, and nothing listens there", key)
			}
		}
		var page map[string]any
		if code := get(t, url+"/v1/loads?include=core", &page); code != http.StatusOK {
			t.Fatalf("loads: %d", code)
		}
		rows := page["loads"].([]any)
		if len(rows) != 2 {
			t.Fatalf("%d rows", len(rows))
		}
		for n, row := range rows {
			row := row.(map[string]any)
			for _, key := range []string{
				"dp_rank", "timestamp", "num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens", "num_used_tokens", "num_total_tokens",
				"max_total_num_tokens", "max_running_requests", "token_usage", "gen_throughput", "cache_hit_rate", "utilization",
			} {
				if _, there := row[key]; !there {
					t.Errorf("row %d lacks %s", n, key)
				}
			}
			if row["dp_rank"] != float64(n) || (row["utilization"] == -1.0) != (mode == "prefill") {
				t.Errorf("row %d: %v", n, row)
			}
		}
		if code := get(t, url+"/v1/loads?include=lora", nil); code != http.StatusBadRequest {
			t.Errorf("an unknown section: %d", code)
		}
	}
}

func TestFleet_KeysAreAskedFor(t *testing.T) {
	t.Parallel()
	f := startFleet(t, Options{Workers: 1, AdminKey: "sentinel-admin", APIKey: "sentinel-api"})
	for _, tc := range []struct {
		method, path, token string
		want                int
	}{
		{"GET", "/server_info", "", 401},
		{"GET", "/server_info", "sentinel-admin", 401},
		{"GET", "/server_info", "sentinel-api", 200},
		{"GET", "/v1/loads", "", 401},
		{"GET", "/v1/loads", "sentinel-api", 200},
		{"GET", "/health", "", 200},
		{"POST", "/v1/start_reporting", "sentinel-api", 401},
		{"POST", "/v1/start_reporting", "sentinel-admin", 422}, // the body is empty
	} {
		req, _ := http.NewRequest(tc.method, f.URLs()[0]+tc.path, nil)
		if tc.token != "" {
			req.Header.Set("Authorization", "Bearer "+tc.token)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != tc.want || strings.Contains(string(body), "sentinel") {
			t.Errorf("%s %s with %q: %d %s, want %d", tc.method, tc.path, tc.token, res.StatusCode, body, tc.want)
		}
	}
}

func TestFleet_StartingEngineSaysSo(t *testing.T) {
	t.Parallel()
	f := startFleet(t, Options{Workers: 1, StartingFor: time.Hour})
	url := f.URLs()[0]
	if code := get(t, url+"/health", nil); code != http.StatusServiceUnavailable {
		t.Errorf("health %d, want 503", code)
	}
	var page loadsPage
	if get(t, url+"/v1/loads", &page); len(page.Loads) != DefaultRanks || page.Loads[0].MaxTotalNumTokens != 0 {
		t.Errorf("loads %+v, want rows without capacity", page)
	}
	if s := f.State()[0]; s.Condition != Starting {
		t.Errorf("state %+v", s)
	}
}
