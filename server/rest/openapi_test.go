package rest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/loadmonitor/loadmonitor/gen/openapi"
)

// described returns a check of a JSON text against a schema of the OpenAPI file. The check is stricter than the file: a
// key that the file does not name fails too, although readers must expect new keys.
func described(t *testing.T) func(schema, text string) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(openapi.Document))
	if err != nil {
		t.Fatal(err)
	}
	closeObjects(doc)
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource("openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	return func(schema, text string) error {
		s, err := c.Compile("openapi.json#/components/schemas/" + schema)
		if err != nil {
			t.Fatal(err)
		}
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			return err
		}
		return s.Validate(v)
	}
}

func closeObjects(v any) {
	switch v := v.(type) {
	case map[string]any:
		if _, properties := v["properties"].(map[string]any); properties && v["additionalProperties"] == nil {
			v["additionalProperties"] = false
		}
		for _, e := range v {
			closeObjects(e)
		}
	case []any:
		for _, e := range v {
			closeObjects(e)
		}
	}
}

// Case J1: the file says what is sent, with everything told and with nothing told.
func TestOpenAPI_DescribesSnapshots(t *testing.T) {
	check := described(t)
	for name, s := range goldens() {
		h := newHandler(t, newFleet())
		h.source.(*fleet).put(s, 0)
		body := get(h, "GET", SnapshotPath).Body.String()
		for _, schema := range []string{"Snapshot", "WatchLine"} {
			if err := check(schema, body); err != nil {
				t.Errorf("%s is no %s: %v", name, schema, err)
			}
		}
	}
}

// The check of the test above can fail: a key that is renamed, left out or of another type is found.
func TestOpenAPI_NoticesEveryChangeOfShape(t *testing.T) {
	check := described(t)
	for name, s := range goldens() {
		var body any
		if err := json.Unmarshal(appendSnapshot(nil, s), &body); err != nil {
			t.Fatal(err)
		}
		changes := 0
		try := func(what string) {
			text, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			if check("Snapshot", string(text)) == nil {
				t.Errorf("%s: %s is not noticed", name, what)
			}
			changes++
		}
		eachObject(body, "", func(path string, o map[string]any) {
			for key, v := range o {
				delete(o, key)
				try(path + "." + key + " left out")
				o[key+"_renamed"] = v
				try(path + "." + key + " renamed")
				delete(o, key+"_renamed")
				o[key] = map[string]any{"of": "another type"}
				if n, number := v.(float64); number {
					o[key] = fmt.Sprint(n) // as the proto3 mapping writes 64-bit integers
				}
				try(path + "." + key + " of another type")
				o[key] = v
			}
		})
		if changes == 0 {
			t.Errorf("%s: nothing was changed", name)
		}
	}
}

// eachObject calls do for each object in v; of a list only the first element is visited.
func eachObject(v any, path string, do func(path string, o map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		do(path, v)
		for key, e := range v {
			eachObject(e, path+"."+key, do)
		}
	case []any:
		if len(v) > 0 {
			eachObject(v[0], path+"[0]", do)
		}
	}
}

func TestOpenAPI_DescribesEveryLineOfAWatch(t *testing.T) {
	check := described(t)
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(known("w", 2), silent("x", 1))
		h := newHandler(t, f)
		p := newPipes(t, h)
		resp, err := p.client(t).Get("http://monitor" + WatchPath)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		go func() {
			time.Sleep(time.Second)
			f.beat()
			time.Sleep(time.Second)
			h.Shutdown()
		}()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for in := bufio.NewScanner(bytes.NewReader(text)); in.Scan(); {
			for _, schema := range []string{"Snapshot", "Heartbeat", "WatchEnd"} {
				if check(schema, in.Text()) == nil {
					got = append(got, schema)
				}
			}
			if err := check("WatchLine", in.Text()); err != nil {
				t.Errorf("%s: %v", in.Text(), err)
			}
		}
		if strings.Join(got, " ") != "Snapshot Heartbeat WatchEnd" {
			t.Errorf("lines are %v, want one of each kind", got)
		}
	})
}

func TestOpenAPI_DescribesErrors(t *testing.T) {
	check := described(t)
	h := newHandler(t, newFleet())
	for _, w := range []interface{ Result() *http.Response }{
		get(h, "POST", SnapshotPath), get(h, "GET", "/x"), get(h, "GET", WatchPath+"?min_interval_ms=x"),
	} {
		resp := w.Result()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if err := check("Status", string(text)); err != nil || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%d %s: %v", resp.StatusCode, text, err)
		}
	}
}

func TestOpenAPI_NamesThePathsThatAreServed(t *testing.T) {
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]any
	}
	if err := json.Unmarshal([]byte(openapi.Document), &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Errorf("openapi is %q", doc.OpenAPI)
	}
	for _, path := range []string{SnapshotPath, WatchPath, OpenAPIPath, "/v1/load_monitor/workers", "/v1/load_monitor/workers/{id}"} {
		if doc.Paths[path] == nil {
			t.Errorf("%s is not described", path)
		}
	}
	if len(doc.Paths) != 5 {
		t.Errorf("%d paths are described, want 5", len(doc.Paths))
	}
}

func TestOpenAPI_IsServedWithATag(t *testing.T) {
	h := newHandler(t, newFleet())
	w := get(h, "GET", OpenAPIPath)
	if w.Body.String() != openapi.Document {
		t.Error("body is not the document")
	}
	if again := get(h, "GET", OpenAPIPath, "If-None-Match", w.Header().Get("ETag")); again.Code != 304 || again.Body.Len() != 0 {
		t.Errorf("status %d with %d bytes for the tag, want 304", again.Code, again.Body.Len())
	}
}
