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
	Role          load.Role // unspecified: regular
	Models        []string  // empty: models are not compared
	Zone          string
	ExpectedRanks int    // DP ranks; 0: not known
	TokenFile     string // holds the bearer token for the engine, read anew on each use; empty: no token

	// Transport is the way the worker's reports take; unspecified: push. Only push needs a lease.
	Transport load.Transport

	// Where says where the entry stands, for errors: "workers.yaml:12". Empty: its position in the list.
	Where string
}

// target is one worker as one source described it, normalised. It is not changed once its source has it.
type target struct {
	worker    load.Worker
	given     string // the id that the source uses; worker.ID differs from it in a conflict
	tokenFile string
	source    string
	where     string
}

// describes reports whether both say the same of the same worker, whoever says it.
func (t *target) describes(o *target) bool {
	return t.worker.Equal(o.worker) && t.tokenFile == o.tokenFile
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
	if err := checkText("id", s.ID, maxNameBytes); err != nil {
		errs = append(errs, err)
	}
	if err := checkText("zone", s.Zone, maxNameBytes); err != nil {
		errs = append(errs, err)
	}
	if err := checkText("token_file", s.TokenFile, maxURLBytes); err != nil {
		errs = append(errs, err)
	}
	if s.Role > load.RoleDecode {
		bad("role %d: want plain, prefill or decode", s.Role)
	}
	if s.Transport > load.TransportPoll {
		bad("transport %d: want push, zmq, dial or poll", s.Transport)
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
	return &target{
		worker: load.Worker{
			ID:            cmp.Or(s.ID, origin),
			URL:           url,
			Origin:        origin,
			Role:          cmp.Or(s.Role, load.RoleRegular),
			Models:        models,
			Zone:          s.Zone,
			ExpectedRanks: s.ExpectedRanks,
			Transport:     cmp.Or(s.Transport, load.TransportPush),
		},
		given:     cmp.Or(s.ID, origin),
		tokenFile: s.TokenFile,
		where:     s.Where,
	}, nil
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
