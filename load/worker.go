package load

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Worker is one registered engine endpoint: what registration says of it (rule ID1). Workers are values that nobody
// changes after they were handed over.
type Worker struct {
	ID     string   // the configured id, or Origin
	URL    string   // scheme://host:port, normalised
	Origin string   // host:port, normalised: the identity of the endpoint
	Models []string // empty: models are not compared
	Zone   string

	// ExpectedRanks is the number of DP ranks; 0 means not known: the reported set is taken at face value.
	ExpectedRanks int

	Role Role
	// Transport is the one way in which reports of this worker are taken. Unspecified: not chosen yet, nothing feeds it.
	Transport Transport
	// TransportReason says why it is that one, beginning with its word: "zmq: the engine advertises load port 5559".
	TransportReason string

	// Conflict says why this worker must not be fed, e.g. that another one has the same origin (rule ID3). Empty: feed it.
	Conflict string
}

// Equal reports whether both say the same of the same worker.
func (w Worker) Equal(o Worker) bool {
	return w.ID == o.ID && w.URL == o.URL && w.Origin == o.Origin && w.Role == o.Role && slices.Equal(w.Models, o.Models) &&
		w.Zone == o.Zone && w.ExpectedRanks == o.ExpectedRanks && w.Transport == o.Transport &&
		w.TransportReason == o.TransportReason && w.Conflict == o.Conflict
}

// ParseAddress normalises an engine's address: the scheme's default port made explicit, host in lower case, IPv6
// canonical and bracketed, path, query and fragment dropped (rule ID1). A bare host:port means http. It returns the URL scheme://host:port and the
// origin host:port. The error names the address and what is wrong with it.
func ParseAddress(addr string) (normalURL, origin string, err error) {
	s := strings.TrimSpace(addr)
	if s == "" {
		return "", "", fmt.Errorf("address is empty: want http://host:port")
	}
	if strings.Contains(s, "@") {
		return "", "", fmt.Errorf("address carries a user or password: remove it and use a token file")
	}
	if !strings.Contains(s, "://") {
		s = "http://" + bracketed(s)
	}
	u, err := url.Parse(s)
	if err != nil {
		return "", "", fmt.Errorf("address %q: %w", addr, err)
	}
	scheme := strings.ToLower(u.Scheme)
	port := u.Port()
	switch scheme {
	case "http", "grpc":
		port = defaultPort(port, "80")
	case "https", "grpcs":
		port = defaultPort(port, "443")
	default:
		return "", "", fmt.Errorf("address %q: scheme %q: want http or https", addr, u.Scheme)
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if host == "" {
		return "", "", fmt.Errorf("address %q has no host", addr)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", "", fmt.Errorf("address %q: port %q: want 1 to 65535", addr, port)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	} else if !validName(host) {
		return "", "", fmt.Errorf("address %q: host %q is neither an IP address nor a DNS name", addr, host)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	normalURL = scheme + "://" + host + ":" + strconv.FormatUint(n, 10)
	return normalURL, normalURL[len(scheme)+len("://"):], nil
}

// validName reports whether host looks like a DNS name: labels of letters, digits, hyphens and underscores.
func validName(host string) bool {
	if len(host) > 253 {
		return false
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
		for _, c := range label {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return false
			}
		}
	}
	return true
}

func defaultPort(port, def string) string {
	if port == "" {
		return def
	}
	return port
}

// bracketed puts a bare IPv6 address into brackets, so that fd00::5 is one host and not a host with a port.
func bracketed(s string) string {
	host, rest, _ := strings.Cut(s, "/")
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() {
		host = "[" + host + "]"
	}
	if rest == "" {
		return host
	}
	return host + "/" + rest
}
