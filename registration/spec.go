package registration

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/loadmonitor/loadmonitor/load"
)

// Bounds on the text of one worker (rule LIFE2).
const (
	maxNameBytes = 256 // id, model, zone
	maxURLBytes  = 2048
	maxModels    = 64
)

// Spec is what a source says of one worker. The zero value of every field but URL has a meaning.
type Spec struct {
	ID            string    // up to 256 bytes; empty: the origin host:port of the URL
	URL           string    // http(s)://host:port of the engine; a bare host:port means http
	Role          load.Role // unspecified: what the engine says of itself, else regular
	Models        []string  // empty: models are not compared
	Zone          string
	ExpectedRanks int // DP ranks; 0: what the engine says of itself

	// Each file holds a bearer token for the engine and is read anew on each use; empty: no token.
	TokenFile  string // its admin API key, for /v1/start_reporting
	APIKeyFile string // its API key, for /server_info

	// Transport is push or zmq; unspecified: zmq where the engine advertises load sockets or LoadEndpoints are given, else
	// push. Only push needs a lease.
	Transport load.Transport
	// LoadEndpoints are the load sockets, one for each rank from 0: host:port or tcp://host:port. Empty: those that the
	// engine advertises. Whoever writes them down vouches for them: nobody asks the engine before data is taken.
	LoadEndpoints  []string
	LoadTopic      string // accepted exactly; empty: what the engine advertises, else an empty topic and "load"
	CurveServerKey string // the publisher's CURVE public key as Z85 text; empty: the monitor's default

	// Where says where the entry stands, for errors: "workers.yaml:12". Empty: its position in the list.
	Where string
}

// target is one worker as one source described it, normalised. It is not changed once its source has it.
type target struct {
	worker     load.Worker // role and transport are unspecified where the engine's word counts
	given      string      // the id that the source uses; worker.ID differs from it in a conflict
	tokenFile  string
	apiKeyFile string
	sockets    *socketSpec // nil: nothing is said of them
	source     string
	where      string
}

// socketSpec is what a source says of a worker's load sockets, which few do.
type socketSpec struct {
	endpoints []endpoint
	topic     string
	serverKey string
}

func (s *socketSpec) equal(o *socketSpec) bool {
	return slices.Equal(s.endpoints, o.endpoints) && s.topic == o.topic && s.serverKey == o.serverKey
}

var noSocketSpec socketSpec

// socketSpec returns what the source says of the load sockets, which nobody changes.
func (t *target) socketSpec() *socketSpec { return cmp.Or(t.sockets, &noSocketSpec) }

// describes reports whether both say the same of the same worker, whoever says it.
func (t *target) describes(o *target) bool {
	return t.worker.Equal(o.worker) && t.tokenFile == o.tokenFile && t.apiKeyFile == o.apiKeyFile &&
		t.socketSpec().equal(o.socketSpec())
}

// open reports whether the engine has a word in how the worker is fed or registered.
func (t *target) open() bool {
	return t.worker.Transport == load.TransportUnspecified || t.worker.Role == load.RoleUnspecified
}

// normalise checks the spec and puts it into the form in which workers are compared. Errors wrap load.ErrWorkerSpec and
// name key, value and remedy, one for each wrong field.
func (s Spec) normalise(maxRanks int) (*target, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	url, origin, err := parseURL(s.URL)
	if err != nil {
		errs = append(errs, err)
	}
	for _, f := range []struct {
		key, value string
		limit      int
	}{
		{"id", s.ID, maxNameBytes}, {"zone", s.Zone, maxNameBytes}, {"token_file", s.TokenFile, maxURLBytes},
		{"api_key_file", s.APIKeyFile, maxURLBytes}, {"load_topic", s.LoadTopic, maxTopicBytes},
	} {
		if err := checkText(f.key, f.value, f.limit); err != nil {
			errs = append(errs, err)
		}
	}
	if s.Role > load.RoleDecode {
		bad("role %d: want plain, prefill or decode", s.Role)
	}
	if s.Transport > load.TransportZMQ {
		bad("transport %d: want auto, push or zmq", s.Transport)
	}
	endpoints, err := s.parseEndpoints(maxRanks)
	if err != nil {
		errs = append(errs, err)
	}
	if s.CurveServerKey != "" && !isZ85Key(s.CurveServerKey) {
		bad("curve_server_key: want the 40 characters of a public key as Z85 text")
	}
	if s.ExpectedRanks < 0 || s.ExpectedRanks > maxRanks {
		bad("expected_ranks %d: want 0 (not known) to %d", s.ExpectedRanks, maxRanks)
	}
	if len(s.Models) > maxModels {
		bad("models: %d names, want at most %d", len(s.Models), maxModels)
	} else {
		for _, m := range s.Models {
			if m == "" {
				bad("models: a name is empty: give a name or remove it")
			} else if err := checkText("models", m, maxNameBytes); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("%w: %w", load.ErrWorkerSpec, joined(errs))
	}
	// The order in which models are named says nothing, so it must not tell two descriptions of one worker apart.
	models := slices.Compact(slices.Sorted(slices.Values(s.Models)))
	t := &target{
		worker: load.Worker{
			ID:            cmp.Or(s.ID, origin),
			URL:           url,
			Origin:        origin,
			Role:          s.Role,
			Models:        models,
			Zone:          s.Zone,
			ExpectedRanks: cmp.Or(s.ExpectedRanks, len(endpoints)),
			Transport:     s.Transport,
		},
		given:      cmp.Or(s.ID, origin),
		tokenFile:  s.TokenFile,
		apiKeyFile: s.APIKeyFile,
		where:      s.Where,
	}
	if sockets := (socketSpec{endpoints, s.LoadTopic, s.CurveServerKey}); !sockets.equal(&noSocketSpec) {
		t.sockets = &sockets
	}
	if len(endpoints) > 0 {
		t.worker.Transport = load.TransportZMQ
	}
	return t, nil
}

// parseEndpoints reads LoadEndpoints and compares them with what else is said of the ranks.
func (s Spec) parseEndpoints(maxRanks int) ([]endpoint, error) {
	n := len(s.LoadEndpoints)
	switch {
	case n == 0:
		return nil, nil
	case s.Transport == load.TransportPush:
		return nil, errors.New("load_endpoints are given and transport is push: remove one of the two")
	case n > maxRanks:
		return nil, fmt.Errorf("load_endpoints has %d entries: want at most %d", n, maxRanks)
	case s.ExpectedRanks != 0 && s.ExpectedRanks != n:
		return nil, fmt.Errorf("load_endpoints has %d entries and expected_ranks is %d: give one endpoint for each rank", n, s.ExpectedRanks)
	}
	endpoints := make([]endpoint, n)
	seen := make(map[endpoint]int, n)
	for i, text := range s.LoadEndpoints {
		e, err := parseEndpoint(text)
		if err != nil {
			return nil, err
		}
		if j, twice := seen[e]; twice {
			return nil, fmt.Errorf("load_endpoints names %s for ranks %d and %d: each rank has a socket of its own", e, j, i)
		}
		seen[e] = i
		endpoints[i] = e
	}
	return endpoints, nil
}

// isZ85Key reports whether s is 32 bytes in Z85.
func isZ85Key(s string) bool {
	const others = ".-:+=^!/*?&<>()[]{}@%$#"
	return len(s) == 40 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune(others, r)
	})
}

// parseURL normalises an engine's URL and refuses what cannot be posted to. Its errors never show a user or password.
func parseURL(s string) (url, origin string, err error) {
	if strings.TrimSpace(s) == "" {
		return "", "", errors.New("url is empty: want http://host:port")
	}
	if len(s) > maxURLBytes {
		return "", "", fmt.Errorf("url has %d bytes: want at most %d", len(s), maxURLBytes)
	}
	if strings.Contains(s, "@") {
		return "", "", errors.New("url carries a user or password: remove it and use token_file")
	}
	url, origin, err = load.ParseAddress(s)
	if err != nil {
		return "", "", fmt.Errorf("url: %w", err)
	}
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
		return "", "", fmt.Errorf("url %q: want http or https, the engine is registered over HTTP", s)
	}
	host := hostOf(origin)
	if ip, err := netip.ParseAddr(host); err == nil {
		switch {
		case ip.IsUnspecified() || ip.IsMulticast():
			return "", "", fmt.Errorf("url %q: %s is no address that can be dialled: name the engine's own", s, host)
		case ip.Zone() != "":
			// The engine learns its own name from the Host header, which cannot carry a zone.
			return "", "", fmt.Errorf("url %q: an address with a zone cannot identify an engine: use a routable one", s)
		}
	}
	return url, origin, nil
}

// hostOf returns the host of a normalised origin, IPv6 without brackets.
func hostOf(origin string) string {
	host := origin[:strings.LastIndexByte(origin, ':')]
	return strings.Trim(host, "[]")
}

func checkText(key, s string, limit int) error {
	switch {
	case len(s) > limit:
		return fmt.Errorf("%s has %d bytes: want at most %d", key, len(s), limit)
	case !utf8.ValidString(s):
		return fmt.Errorf("%s %q is not valid UTF-8", key, s)
	case strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("%s %q holds a control character", key, s)
	case s != strings.TrimSpace(s):
		return fmt.Errorf("%s %q begins or ends with a space", key, s)
	}
	return nil
}

// maxErrors bounds how many mistakes one refusal lists.
const maxErrors = 8

// joined puts the mistakes on one line, so that a log line or an RPC status shows them all.
func joined(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	texts := make([]string, 0, maxErrors+1)
	for i, err := range errs {
		if i == maxErrors {
			texts = append(texts, fmt.Sprintf("and %d more", len(errs)-maxErrors))
			break
		}
		texts = append(texts, err.Error())
	}
	return errors.New(strings.Join(texts, "; "))
}
