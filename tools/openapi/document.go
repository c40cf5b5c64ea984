package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/loadmonitor/loadmonitor/load"
)

// document turns the Swagger 2.0 file of protoc-gen-openapiv2 into the OpenAPI document.
func document(swagger []byte) ([]byte, error) {
	var in source
	if err := json.Unmarshal(swagger, &in); err != nil {
		return nil, fmt.Errorf("swagger file: %w", err)
	}
	for _, c := range comments {
		if err := in.setComment(c.message, c.field, c.text); err != nil {
			return nil, err
		}
	}
	paths := ownPaths()
	for _, path := range slices.Sorted(maps.Keys(in.Paths)) {
		if path == snapshotPath || path == watchPath {
			continue
		}
		item := object{}
		for _, method := range slices.Sorted(maps.Keys(in.Paths[path])) {
			item = item.set(method, in.Paths[path][method].convert())
		}
		paths = paths.set(path, item)
	}
	schemas, err := ownSchemas(in)
	if err != nil {
		return nil, err
	}
	for _, name := range reachable(paths, in.Definitions) {
		schemas = schemas.set(plainName(name), rename(lowerWords(in.Definitions[name])))
	}
	doc, err := marshal(object{
		{"openapi", "3.1.0"},
		{"info", object{
			{"title", "Load monitor"},
			{"version", "1"},
			{"description", "The load of every engine, per DP rank, and which engines are registered. Errors have the shape of " +
				"Status. A path with a slash at its end is redirected (308). No CORS headers are sent."},
		}},
		{"tags", []object{
			{{"name", "snapshot"}, {"description", in.tag("SnapshotService")}},
			{{"name", "registry"}, {"description", in.tag("RegistryService")}},
		}},
		{"paths", paths},
		{"components", object{{"schemas", schemas}}},
	})
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, doc, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// source is what is read of the Swagger file.
type source struct {
	Tags []struct{ Name, Description string } `json:"tags"`

	Paths       map[string]map[string]operation `json:"paths"`
	Definitions map[string]map[string]any       `json:"definitions"`
}

type operation struct {
	Summary     string                    `json:"summary"`
	OperationID string                    `json:"operationId"`
	Parameters  []map[string]any          `json:"parameters"`
	Responses   map[string]map[string]any `json:"responses"`
}

func (s source) tag(name string) string {
	for _, t := range s.Tags {
		if t.Name == name {
			return oneLine(t.Description)
		}
	}
	return ""
}

// comment returns what the .proto file says of a field, or an error when there is no such field: it was renamed there.
func (s source) comment(message, field string) (string, error) {
	properties, _ := s.Definitions[message]["properties"].(map[string]any)
	property, ok := properties[field].(map[string]any)
	if !ok {
		return "", fmt.Errorf("%s has no field %s: follow its new name in tools/openapi", message, field)
	}
	text, _ := property["description"].(string)
	return oneLine(text), nil
}

// comments replaces those comments of the .proto files that speak of enum values, which JSON writes as words.
var comments = []struct{ message, field, text string }{
	{"v1WorkerSpec", "role", "Left out: what the engine says of itself, else plain."},
	{"v1RegisteredWorker", "reason", "Why the state is not leased; empty when it is."},
}

func (s source) setComment(message, field, text string) error {
	if _, err := s.comment(message, field); err != nil {
		return err
	}
	s.Definitions[message]["properties"].(map[string]any)[field].(map[string]any)["description"] = text
	return nil
}

// convert returns the operation as OpenAPI 3.1. Everything that the registry's operations use is covered: a body, path
// parameters, and JSON answers.
func (op operation) convert() object {
	out := object{
		{"tags", []string{"registry"}},
		{"operationId", op.OperationID},
		{"description", oneLine(op.Summary)},
	}
	var parameters []object
	for _, p := range op.Parameters {
		if p["in"] == "body" {
			out = out.set("requestBody", object{{"required", p["required"]}, {"content", content("application/json", rename(p["schema"]))}})
			continue
		}
		parameters = append(parameters, object{
			{"name", p["name"]}, {"in", p["in"]}, {"required", p["required"]}, {"schema", object{{"type", p["type"]}}},
		})
	}
	if parameters != nil {
		out = out.set("parameters", parameters)
	}
	responses := object{}
	for _, code := range slices.Sorted(maps.Keys(op.Responses)) {
		r := op.Responses[code]
		responses = responses.set(code, object{
			{"description", r["description"]}, {"content", content("application/json", rename(r["schema"]))},
		})
	}
	return out.set("responses", responses)
}

func content(mediaType string, schema any) object {
	return object{{mediaType, object{{"schema", schema}}}}
}

const (
	definitionRef = "#/definitions/"
	schemaRef     = "#/components/schemas/"
)

// plainName drops the prefix that the generator derives from the package.
func plainName(definition string) string {
	for _, prefix := range []string{"v1", "rpc", "protobuf"} {
		if rest, ok := strings.CutPrefix(definition, prefix); ok {
			return rest
		}
	}
	return definition
}

// rename returns v with its references led to components/schemas. A schema that is a reference says nothing else.
func rename(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = rename(e)
		}
		if ref, ok := v["$ref"].(string); ok {
			out["$ref"] = schemaRef + plainName(strings.TrimPrefix(ref, definitionRef))
			delete(out, "type")
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = rename(e)
		}
		return out
	}
	return v
}

// lowerWords turns the values of an enum into the words that the gateway's marshaller writes: REGISTRATION_STATE_LEASED is
// "leased". What is unspecified is not sent, but for a transport that is not chosen yet, which is null.
func lowerWords(definition map[string]any) map[string]any {
	values, ok := definition["enum"].([]any)
	if !ok {
		return definition
	}
	doc, _ := definition["description"].(string)
	zero, _ := values[0].(string)
	prefix := strings.TrimSuffix(zero, "UNSPECIFIED")
	var list []any
	for _, v := range values[1:] {
		value, _ := v.(string)
		word := strings.ToLower(strings.TrimPrefix(value, prefix))
		if role, ok := load.ParseRole(word); ok && prefix == "ROLE_" {
			word = role.String()
		}
		doc = strings.ReplaceAll(doc, value+":", word+":")
		list = append(list, word)
	}
	if prefix == "TRANSPORT_" {
		doc = strings.ReplaceAll(doc, zero+":", "null:")
		return map[string]any{"type": []string{"string", "null"}, "enum": append(list, nil), "description": doc}
	}
	return map[string]any{"type": "string", "enum": list, "description": doc}
}

// reachable returns the names of the definitions that the paths lead to, directly or not, sorted by their plain names.
func reachable(paths object, definitions map[string]map[string]any) []string {
	seen := map[string]bool{}
	var visit func(v any)
	visit = func(v any) {
		b, err := marshal(v)
		if err != nil {
			return // not JSON: writing the document reports it
		}
		for name := range definitions {
			named := bytes.Contains(b, []byte(`"`+definitionRef+name+`"`)) || bytes.Contains(b, []byte(`"`+schemaRef+plainName(name)+`"`))
			if named && !seen[name] && !isOwn(plainName(name)) {
				seen[name] = true
				visit(definitions[name])
			}
		}
	}
	visit(paths)
	return slices.SortedFunc(maps.Keys(seen), func(a, b string) int { return strings.Compare(plainName(a), plainName(b)) })
}

// oneLine undoes the line breaks of a comment.
func oneLine(comment string) string { return strings.Join(strings.Fields(comment), " ") }
