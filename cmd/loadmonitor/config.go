package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/loadmonitor/loadmonitor/registration"
)

// envPrefix stands before the name of a flag in the environment: stale-after is LOADMONITOR_STALE_AFTER.
const envPrefix = "LOADMONITOR_"

// workersKey is the one key of the configuration file that is no flag: a list of workers, as in a workers file.
const workersKey = "workers"

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// load completes the flags that were not given on the command line: from the environment, else from the configuration
// file. Every value goes through its flag, so there is one way to read it and one way to refuse it. Unknown keys are
// refused with the nearest name there is; unknown variables are not, because Kubernetes sets LOADMONITOR_SERVICE_HOST
// and others for a service of that name.
func (s *settings) load(fs *pflag.FlagSet, file string, lookupEnv func(string) (string, bool)) error {
	given := map[string]bool{}
	fs.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	var errs []error
	fs.VisitAll(func(f *pflag.Flag) {
		value, ok := lookupEnv(envName(f.Name))
		if !ok || given[f.Name] || !configurable(f) {
			return
		}
		given[f.Name] = true
		if err := setFlag(fs, f, []string{value}); err != nil {
			errs = append(errs, fmt.Errorf("environment: %s: %w", envName(f.Name), err))
		}
	})
	if file != "" {
		if err := s.loadFile(fs, file, given); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// configurable leaves out the flags that say what to do instead of how.
func configurable(f *pflag.Flag) bool {
	return f.Name != "config" && f.Name != "print-config" && f.Name != "help"
}

func setFlag(fs *pflag.FlagSet, f *pflag.Flag, values []string) error {
	for _, v := range values {
		if err := f.Value.Set(v); err != nil {
			return fmt.Errorf("%s is %q: %s", f.Name, v, wantOf(f, err))
		}
		f.Changed = true
	}
	return nil
}

func (s *settings) loadFile(fs *pflag.FlagSet, file string, given map[string]bool) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	var doc yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&doc); err == io.EOF {
		return nil
	} else if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if err := decoder.Decode(new(yaml.Node)); err != io.EOF {
		return fmt.Errorf("%s: more than one document: keep one", file)
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return fmt.Errorf("%s:%d: want a mapping of keys to values", file, top.Line)
	}
	known := []string{workersKey}
	fs.VisitAll(func(f *pflag.Flag) {
		if configurable(f) {
			known = append(known, f.Name)
		}
	})
	var errs []error
	seen := map[string]bool{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		at := fmt.Sprintf("%s:%d", file, key.Line)
		switch {
		case !slices.Contains(known, key.Value):
			errs = append(errs, fmt.Errorf("%s: unknown key %q%s", at, key.Value, registration.DidYouMean(key.Value, known)))
		case seen[key.Value]:
			errs = append(errs, fmt.Errorf("%s: key %q stands twice: keep one", at, key.Value))
		case key.Value == workersKey:
			if s.specs, err = workersOf(file, value); err != nil {
				errs = append(errs, err)
			}
		default:
			values, err := scalars(value)
			if err == nil && value.Kind == yaml.SequenceNode && fs.Lookup(key.Value).Value.Type() != "stringArray" {
				err = errors.New("want a single value")
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", key.Value, err)
			} else if !given[key.Value] {
				err = setFlag(fs, fs.Lookup(key.Value), values)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", at, err))
			}
		}
		seen[key.Value] = true
	}
	return errors.Join(errs...)
}

// scalars returns the text of a value, or of each item of a list, as written.
func scalars(n *yaml.Node) ([]string, error) {
	switch {
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		return nil, errors.New("the value is empty: give one or remove the key")
	case n.Kind == yaml.ScalarNode:
		return []string{n.Value}, nil
	case n.Kind == yaml.SequenceNode:
		var values []string
		for _, item := range n.Content {
			v, err := scalars(item)
			if err != nil {
				return nil, err
			}
			values = append(values, v...)
		}
		return values, nil
	}
	return nil, errors.New("want a single value")
}

// print writes the configuration in force as a configuration file.
func (s *settings) print(fs *pflag.FlagSet, specs []registration.Spec, w io.Writer) error {
	doc := &yaml.Node{Kind: yaml.MappingNode}
	add := func(key string, value any) error {
		var n yaml.Node
		if err := n.Encode(value); err != nil {
			return err
		}
		doc.Content = append(doc.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, &n)
		return nil
	}
	var err error
	fs.VisitAll(func(f *pflag.Flag) {
		// The workers of every source stand in one list below.
		if !configurable(f) || f.Name == "worker" || f.Name == "workers-file" {
			return
		}
		err = errors.Join(err, add(f.Name, scalar(f)))
	})
	workers := []map[string]any{}
	for _, spec := range specs {
		workers = append(workers, describe(spec))
	}
	if err := errors.Join(err, add(workersKey, workers)); err != nil {
		return err
	}
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	return enc.Encode(doc)
}

// scalar gives a flag's value the YAML type that reads best.
func scalar(f *pflag.Flag) any {
	var n yaml.Node
	switch f.Value.Type() {
	case "bool", "int", "uint16":
		if yaml.Unmarshal([]byte(f.Value.String()), &n) == nil && len(n.Content) == 1 {
			return n.Content[0]
		}
	}
	return f.Value.String()
}

// describe returns the keys of a worker that say something.
func describe(spec registration.Spec) map[string]any {
	m := map[string]any{"url": spec.URL}
	for key, value := range map[string]string{
		"id": spec.ID, "zone": spec.Zone, "token_file": spec.TokenFile, "api_key_file": spec.APIKeyFile, "load_topic": spec.LoadTopic,
		"curve_server_key": spec.CurveServerKey,
	} {
		if value != "" {
			m[key] = value
		}
	}
	if spec.Role != 0 {
		m["role"] = spec.Role.String()
	}
	if spec.Transport != 0 {
		m["transport"] = spec.Transport.String()
	}
	if len(spec.LoadEndpoints) > 0 {
		m["load_endpoints"] = spec.LoadEndpoints
	}
	if len(spec.Models) > 0 {
		m["models"] = spec.Models
	}
	if spec.ExpectedRanks > 0 {
		m["expected_ranks"] = spec.ExpectedRanks
	}
	return m
}
