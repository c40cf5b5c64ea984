package registration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFileBytes bounds a workers file; 16,384 workers with every key take about a quarter of it.
const maxFileBytes = 16 << 20

// ReadWorkers reads a workers file; "-" reads stdin to its end. See [ParseWorkers] for what it may hold.
func ReadWorkers(path string, stdin io.Reader) ([]Spec, error) {
	name, in := path, stdin
	if path == "-" {
		name = "stdin"
	} else {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("workers file: %w", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("workers file %s: %w", name, err)
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("workers file %s: more than %d MiB: split the fleet over several monitors", name, maxFileBytes>>20)
	}
	return ParseWorkers(name, data)
}

// ParseWorkers reads a list of workers in one of two forms. The first line that is neither blank nor a comment decides:
//
//	# a list of URLs: that line is one word that looks like an address
//	http://10.0.0.1:30000
//	10.0.0.2:30000        # a comment
//
//	# YAML: everything else; an entry is a mapping, or a bare URL
//	- id: decode-1
//	  url: http://10.0.0.1:30000
//	  role: decode                    # plain, prefill or decode; default: as the engine says
//	  models: [m1]
//	  zone: z1
//	  expected_ranks: 2               # default: as the engine says
//	  token_file: /run/secrets/admin  # its admin API key, for /v1/start_reporting
//	  api_key_file: /run/secrets/api  # its API key, for /server_info
//	  transport: zmq                  # push, zmq or auto (the default): as the engine says
//	  load_endpoints: [10.0.0.1:5559, 10.0.0.9:5559]  # one for each rank; default: as the engine says
//	  load_topic: load
//	  curve_server_key: rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7
//	- http://10.0.0.2:30000
//
// No line, and the YAML list [], are an empty set. What is not understood is refused and named with its line, key and
// value; nothing falls back to a default in silence. name stands in the errors.
func ParseWorkers(name string, data []byte) ([]Spec, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	for line := range bytes.Lines(data) {
		first := significant(line)
		if first == "" {
			continue
		}
		if isAddressWord(first) {
			return parseLines(name, data)
		}
		return parseYAML(name, data)
	}
	return nil, nil
}

// significant returns the line without its comment and the space around it. A # begins a comment at the start of a line
// and after a space, as in YAML.
func significant(line []byte) string {
	s := strings.TrimSpace(string(line))
	if strings.HasPrefix(s, "#") {
		return ""
	}
	for i := 1; i < len(s); i++ {
		if s[i] == '#' && (s[i-1] == ' ' || s[i-1] == '\t') {
			return strings.TrimSpace(s[:i])
		}
	}
	return s
}

// isAddressWord tells a line of a URL list from the first line of a YAML document: one word that neither begins like
// YAML's structure nor ends like one of its keys. A bracket may begin an IPv6 address.
func isAddressWord(s string) bool {
	if strings.ContainsAny(s, " \t") || strings.HasSuffix(s, ":") {
		return false
	}
	if strings.HasPrefix(s, "[") {
		inside, _, closed := strings.Cut(s[1:], "]")
		return closed && strings.Contains(inside, ":") && strings.Trim(inside, "0123456789abcdefABCDEF:.") == ""
	}
	return !strings.ContainsAny(s[:1], "-.{}]\"'&*!|>%@`,?")
}

func parseLines(name string, data []byte) ([]Spec, error) {
	var specs []Spec
	var errs []error
	n := 0
	for line := range bytes.Lines(data) {
		n++
		s := significant(line)
		if s == "" {
			continue
		}
		where := fmt.Sprintf("%s:%d", name, n)
		if !isAddressWord(s) {
			errs = append(errs, fmt.Errorf("%s: %q: want one URL a line, because the first line is one", where, clipped(s)))
			continue
		}
		specs = append(specs, Spec{URL: s, Where: where})
	}
	if len(errs) > 0 {
		return nil, refusedErrors(errs)
	}
	return specs, nil
}

func parseYAML(name string, data []byte) ([]Spec, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) { // nothing but comments and markers
			return nil, nil
		}
		return nil, fmt.Errorf("workers file %s: %w", name, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("workers file %s: more than one YAML document: put all workers into one list", name)
	}
	d := decoder{name: name}
	specs := d.workers(doc.Content[0])
	if len(d.errs) > 0 {
		return nil, refusedErrors(d.errs)
	}
	return specs, nil
}

// clipped bounds a value that an error shows.
func clipped(s string) string {
	const limit = 80
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
