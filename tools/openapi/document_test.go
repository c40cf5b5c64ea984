package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/loadmonitor/loadmonitor/load"
)

// swaggerFile returns a file such as protoc-gen-openapiv2 writes, as far as it is read here.
func swaggerFile() map[string]any {
	message := func(fields ...string) map[string]any {
		properties := map[string]any{}
		for _, f := range fields {
			properties[f] = map[string]any{"type": "string", "format": "int64", "description": "Comment of\n" + f + "."}
		}
		return map[string]any{"type": "object", "properties": properties}
	}
	rank := []string{"dp_rank"}
	for s := range load.NumIntSignals {
		rank = append(rank, s.String())
	}
	for s := range load.NumFloatSignals {
		rank = append(rank, s.String())
	}
	aggregate := []string{"rank_count"}
	for f := range load.NumIntFigures {
		aggregate = append(aggregate, f.String())
	}
	for f := range load.NumFloatFigures {
		aggregate = append(aggregate, f.String())
	}
	spec := message("id", "role")
	spec["properties"].(map[string]any)["role"] = map[string]any{"$ref": definitionRef + "v1Role", "type": "object"}
	registered := message("reason")
	registered["properties"].(map[string]any)["spec"] = map[string]any{"$ref": definitionRef + "v1WorkerSpec"}
	return map[string]any{
		"definitions": map[string]any{
			rankMessage:          message(rank...),
			aggregateMessage:     message(aggregate...),
			workerMessage:        message("id", "url", "anomalies", "restarts", "freshness_window_ms"),
			summaryMessage:       message("workers", "fresh", "stale", "missing", "incomplete", "unreachable", "complete"),
			snapshotMessage:      message("epoch", "version"),
			"v1WorkerSpec":       spec,
			"v1RegisteredWorker": registered,
			"v1Role": map[string]any{
				"type": "string", "default": "ROLE_UNSPECIFIED", "enum": []string{"ROLE_UNSPECIFIED", "ROLE_REGULAR", "ROLE_DECODE"},
				"description": "A role.\n\n - ROLE_REGULAR: Both.",
			},
			"v1Unused": message("x"),
		},
		"paths": map[string]any{
			snapshotPath: map[string]any{"get": map[string]any{"operationId": "FromProto"}},
			"/workers": map[string]any{"post": map[string]any{
				"operationId": "Register",
				"parameters": []any{
					map[string]any{"in": "path", "name": "id", "required": true, "type": "string"},
					map[string]any{"in": "body", "name": "worker", "required": true, "schema": map[string]any{"$ref": definitionRef + "v1WorkerSpec"}},
				},
				"responses": map[string]any{"200": map[string]any{
					"description": "ok", "schema": map[string]any{"$ref": definitionRef + "v1RegisteredWorker"},
				}},
			}},
		},
	}
}

func convert(t *testing.T, swagger map[string]any) (string, error) {
	t.Helper()
	in, err := json.Marshal(swagger)
	if err != nil {
		t.Fatal(err)
	}
	out, err := document(in)
	return string(out), err
}

func TestDocument_IsTheSameEachTime(t *testing.T) {
	first, err := convert(t, swaggerFile())
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if again, _ := convert(t, swaggerFile()); again != first {
			t.Fatal("two runs differ")
		}
	}
}

func TestDocument_HoldsWhatIsSentAndNothingElse(t *testing.T) {
	text, err := convert(t, swaggerFile())
	if err != nil {
		t.Fatal(err)
	}
	var flat bytes.Buffer
	if err := json.Compact(&flat, []byte(text)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"openapi":"3.1.0"`,
		`"num_used_tokens":{"description":"Sum over ranks: Comment of num_used_tokens.","type":["integer","null"],"format":"int64","minimum":0}`,
		`"free_tokens":{"description":"Comment of free_tokens."`,
		`"token_usage":{"description":"Comment of token_usage.","type":["number","null"],"format":"double"}`,
		`"mode":{"description":"What the worker does; plain is prefill and decode in one engine.","type":["string","null"],"enum":["plain","prefill","decode",null]}`,
		`"Role":{"description":"A role.\n\n - plain: Both.","enum":["plain","decode"],"type":"string"}`,
		`"role":{"$ref":"#/components/schemas/Role","description":"Left out: what the engine says of itself, else plain."}`,
		`"requestBody":{"required":true,"content":{"application/json":{"schema":{"$ref":"#/components/schemas/WorkerSpec"}}}}`,
		`"parameters":[{"name":"id","in":"path","required":true,"schema":{"type":"string"}}]`,
	} {
		if !strings.Contains(flat.String(), want) {
			t.Errorf("document lacks %s", want)
		}
	}
	for _, bad := range []string{definitionRef, "Unused", "FromProto", "ROLE_", rankMessage, "v1"} {
		if strings.Contains(strings.ReplaceAll(text, "/v1/", "/"), bad) {
			t.Errorf("document holds %s", bad)
		}
	}
}

func TestDocument_NamesAFieldThatIsGone(t *testing.T) {
	for _, tt := range []struct{ message, field string }{
		{rankMessage, "num_used_tokens"}, {aggregateMessage, "free_tokens"}, {workerMessage, "restarts"}, {"v1WorkerSpec", "role"},
	} {
		s := swaggerFile()
		delete(s["definitions"].(map[string]any)[tt.message].(map[string]any)["properties"].(map[string]any), tt.field)
		if _, err := convert(t, s); err == nil || !strings.Contains(err.Error(), tt.message+" has no field "+tt.field) {
			t.Errorf("without %s.%s: %v", tt.message, tt.field, err)
		}
	}
}
