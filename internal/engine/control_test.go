package engine

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// controlState reads GET /control.
func controlState(t *testing.T, f *Fleet) []map[string]any {
	t.Helper()
	var answer struct{ Workers []map[string]any }
	if code := get(t, f.ControlURL()+"/control", &answer); code != http.StatusOK {
		t.Fatalf("status %d", code)
	}
	return answer.Workers
}

func command(t *testing.T, f *Fleet, path string) (int, string) {
	t.Helper()
	res, err := http.Post(f.ControlURL()+path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if len(body) == 0 {
		return res.StatusCode, ""
	}
	var refusal struct{ Detail string }
	if err := json.Unmarshal(body, &refusal); err != nil {
		return res.StatusCode, string(body) // of the mux
	}
	return res.StatusCode, refusal.Detail
}

func TestControl_CommandsTakeEffect(t *testing.T) {
	t.Parallel()
	f := startFleet(t, Options{Workers: 2, Ranks: 3, ControlAddr: "127.0.0.1:0"})
	url := f.URLs()[1]
	do := func(path string) {
		t.Helper()
		if code, detail := command(t, f, path); code != http.StatusNoContent {
			t.Fatalf("%s: %d %s", path, code, detail)
		}
	}
	expect := func(key string, want any) {
		t.Helper()
		got, _ := json.Marshal(controlState(t, f)[1][key])
		wanted, _ := json.Marshal(want)
		if string(got) != string(wanted) {
			t.Errorf("%s is %s, want %s", key, got, wanted)
		}
	}
	expect("condition", "running")
	expect("url", url)
	expect("hot_rank", nil)
	expect("silent_ranks", []int{})
	do("/control/hang?worker=1")
	expect("condition", "hung")
	do("/control/silence?worker=" + url + "&rank=0")
	do("/control/silence?worker=" + strings.ToUpper(url) + "/&rank=2")
	expect("silent_ranks", []int{0, 2})
	do("/control/hot?worker=1&rank=2")
	expect("hot_rank", 2)
	do("/control/resume?worker=1&rank=2")
	expect("silent_ranks", []int{0})
	expect("hot_rank", nil)
	expect("condition", "hung")
	do("/control/resume?worker=1")
	expect("silent_ranks", []int{})
	expect("condition", "running")
	do("/control/crash?worker=1")
	expect("condition", "crashed")
	expect("source_instance_id", "")
	expect("reporter", nil)
	do("/control/restart?worker=1")
	expect("condition", "running")
	expect("lives", 2)
	if other := controlState(t, f)[0]; other["lives"] != 1.0 || other["condition"] != "running" {
		t.Errorf("the other worker: %v", other)
	}
}

func TestControl_RefusalsNameOffenderAndRemedy(t *testing.T) {
	t.Parallel()
	f := startFleet(t, Options{Workers: 2, Ranks: 3, ControlAddr: "127.0.0.1:0"})
	if code, detail := command(t, f, "/control/crash?worker=1"); code != http.StatusNoContent {
		t.Fatal(code, detail)
	}
	for _, tc := range []struct {
		path  string
		code  int
		names []string
	}{
		{"/control/explode?worker=0", 400, []string{"explode", "hang", "resume"}},
		{"/control/hang", 400, []string{"worker is missing", "worker="}},
		{"/control/hang?worker=x%20y", 400, []string{"x y", "number"}},
		{"/control/hang?worker=2", 404, []string{"worker 2", "0 to 1"}},
		{"/control/hang?worker=-1", 404, []string{"-1"}},
		{"/control/hang?worker=http://127.0.0.1:1", 404, []string{"127.0.0.1:1", "GET /control"}},
		{"/control/hang?worker=0&rank=1", 400, []string{"rank 1", "leave rank out"}},
		{"/control/silence?worker=0", 400, []string{"rank is missing", "rank="}},
		{"/control/silence?worker=0&rank=x", 400, []string{"rank", "x"}},
		{"/control/silence?worker=0&rank=3", 404, []string{"rank 3", "0 to 2"}},
		{"/control/hot?worker=0&rank=-1", 404, []string{"rank -1"}},
		{"/control/hang?worker=1", 409, []string{"worker 1", "restart"}},
		{"/control/resume?worker=1", 409, []string{"worker 1", "restart"}},
		{"/control/crash?worker=1", 409, []string{"worker 1", "restart"}},
	} {
		code, detail := command(t, f, tc.path)
		if code != tc.code {
			t.Errorf("%s: %d %s, want %d", tc.path, code, detail, tc.code)
		}
		why := map[int]error{400: ErrCommand, 404: ErrNotFound, 409: ErrConflict}[tc.code]
		if !strings.HasPrefix(detail, why.Error()+": ") {
			t.Errorf("%s: %q does not begin with %q", tc.path, detail, why)
		}
		for _, name := range tc.names {
			if !strings.Contains(detail, name) {
				t.Errorf("%s: %q does not name %q", tc.path, detail, name)
			}
		}
	}
	if code := get(t, f.ControlURL()+"/control/hang?worker=0", nil); code != http.StatusMethodNotAllowed {
		t.Errorf("GET of a command: %d, want 405", code)
	}
}

func TestControl_RefusalsAreReadableAsTheyStand(t *testing.T) {
	t.Parallel()
	f := startFleet(t, Options{Workers: 1, ControlAddr: "127.0.0.1:0"})
	res, err := http.Post(f.ControlURL()+"/control/hang", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || !strings.Contains(string(body), "worker=<number or URL>") {
		t.Errorf("%v: %s", err, body)
	}
}

// A page of another origin cannot make a browser disturb the fleet.
func TestControl_ForeignOriginIsRefused(t *testing.T) {
	t.Parallel()
	f := startFleet(t, Options{Workers: 1, ControlAddr: "127.0.0.1:0"})
	req, _ := http.NewRequest(http.MethodPost, f.ControlURL()+"/control/crash?worker=0", nil)
	req.Header.Set("Origin", "http://elsewhere.example")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("status %d, want 403", res.StatusCode)
	}
	if s := f.State()[0]; s.Condition != Running {
		t.Errorf("state %+v", s)
	}
}
