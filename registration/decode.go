package registration

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/loadmonitor/loadmonitor/load"
	"go.yaml.in/yaml/v3"
)

// workerKeys are the keys of one entry of a workers file, in the order of its documentation.
var workerKeys = []string{
	"id", "url", "role", "models", "zone", "expected_ranks", "token_file", "api_key_file", "transport", "load_endpoints", "load_topic",
	"curve_server_key",
}

// decoder turns YAML nodes into specs. It works on nodes and not on a struct, so that each mistake can be named with its
// line, key and value, and so that a text keeps its spelling: a zone called no is not a boolean.
type decoder struct {
	name string
	errs []error
}

func (d *decoder) bad(n *yaml.Node, format string, args ...any) {
	err := fmt.Errorf(format, args...)
	d.errs = append(d.errs, fmt.Errorf("%s: %w: %w", d.at(n), load.ErrWorkerSpec, err))
}

func (d *decoder) at(n *yaml.Node) string { return fmt.Sprintf("%s:%d", d.name, n.Line) }

func (d *decoder) workers(n *yaml.Node) []Spec {
	n = resolved(n)
	if isNull(n) { // a document of markers only
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		d.bad(n, "found %s: want a list of workers, or one URL a line", kindOf(n))
		return nil
	}
	specs := make([]Spec, 0, len(n.Content))
	for _, entry := range n.Content {
		entry := resolved(entry)
		switch {
		case entry.Kind == yaml.MappingNode:
			specs = append(specs, d.worker(entry))
		case entry.Kind == yaml.ScalarNode && !isNull(entry):
			specs = append(specs, Spec{URL: entry.Value, Where: d.at(entry)})
		default:
			d.bad(entry, "entry is %s: want a URL, or a mapping with the key url", kindOf(entry))
		}
	}
	return specs
}

func (d *decoder) worker(n *yaml.Node) Spec {
	s := Spec{Where: d.at(n)}
	seen := make(map[string]int, len(workerKeys))
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolved(n.Content[i+1])
		if !slices.Contains(workerKeys, key.Value) {
			d.bad(key, "unknown key %q%s: the keys are %s", clipped(key.Value), DidYouMean(key.Value, workerKeys),
				strings.Join(workerKeys, ", "))
			continue
		}
		if line, twice := seen[key.Value]; twice {
			d.bad(key, "key %q stands in line %d too: keep one", key.Value, line)
			continue
		}
		seen[key.Value] = key.Line
		d.field(&s, key.Value, value)
	}
	if _, ok := seen["url"]; !ok {
		d.bad(n, "key url is missing: want http://host:port")
	}
	return s
}

func (d *decoder) field(s *Spec, key string, value *yaml.Node) {
	switch key {
	case "id":
		s.ID = d.text(key, value)
	case "url":
		s.URL = d.text(key, value)
	case "zone":
		s.Zone = d.text(key, value)
	case "token_file":
		s.TokenFile = d.text(key, value)
	case "api_key_file":
		s.APIKeyFile = d.text(key, value)
	case "load_topic":
		s.LoadTopic = d.text(key, value)
	case "curve_server_key":
		s.CurveServerKey = d.text(key, value)
	case "role":
		s.Role = d.role(value)
	case "transport":
		s.Transport = d.transport(value)
	case "models":
		s.Models = d.texts(key, value, "[m1]")
	case "load_endpoints":
		s.LoadEndpoints = d.texts(key, value, "[10.0.0.1:5559, 10.0.0.2:5559]")
	case "expected_ranks":
		text := d.text(key, value)
		n, err := strconv.Atoi(text)
		if err != nil && text != "" {
			d.bad(value, "expected_ranks %q: want a whole number", clipped(text))
		}
		s.ExpectedRanks = n
	}
}

func (d *decoder) role(value *yaml.Node) load.Role {
	text := d.text("role", value)
	role, ok := load.ParseRole(text)
	if !ok {
		words := []string{"plain", "prefill", "decode"}
		d.bad(value, "role %q%s: want plain, prefill or decode", clipped(text), DidYouMean(text, words))
	}
	return role
}

func (d *decoder) transport(value *yaml.Node) load.Transport {
	switch text := d.text("transport", value); text {
	case "auto", "":
		return load.TransportUnspecified
	case load.TransportPush.String():
		return load.TransportPush
	case load.TransportZMQ.String():
		return load.TransportZMQ
	default:
		d.bad(value, "transport %q%s: want auto, push or zmq", clipped(text), DidYouMean(text, []string{"auto", "push", "zmq"}))
		return load.TransportUnspecified
	}
}

// texts returns the values of a list.
func (d *decoder) texts(key string, n *yaml.Node, example string) []string {
	if n.Kind != yaml.SequenceNode {
		d.bad(n, "%s is %s: want a list, e.g. %s", key, kindOf(n), example)
		return nil
	}
	var all []string
	for _, value := range n.Content {
		all = append(all, d.text(key, resolved(value)))
	}
	return all
}

// text returns the value as it is written. An empty one is refused: whoever wrote the key meant to say something.
func (d *decoder) text(key string, n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode {
		d.bad(n, "%s is %s: want a single value", key, kindOf(n))
		return ""
	}
	if isNull(n) || n.Value == "" {
		d.bad(n, "%s is empty: give a value or remove the key", key)
		return ""
	}
	return n.Value
}

// resolved follows an alias to its anchor. Nothing below it is expanded, so aliases cannot multiply.
func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	if isNull(n) {
		return "empty"
	}
	return fmt.Sprintf("%q", clipped(n.Value))
}
