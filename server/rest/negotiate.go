package rest

import (
	"net/http"
	"strconv"
	"strings"
)

// acceptsGzip reports whether the reader takes gzip and does not prefer the plain text.
func acceptsGzip(r *http.Request) bool {
	var gzip, identity, rest float64
	named := false
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept-Encoding"), ","), ",") {
		coding, params, _ := strings.Cut(part, ";")
		q := quality(params)
		switch strings.ToLower(strings.TrimSpace(coding)) {
		case "gzip", "x-gzip":
			gzip, named = q, true
		case "identity":
			identity = q
		case "*":
			rest = q
		}
	}
	if !named {
		gzip = rest
	}
	return gzip > 0 && gzip >= identity
}

// quality reads the weight among the parameters of a coding; 1 when there is none, 0 when it cannot be read.
func quality(params string) float64 {
	for param := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(param), "=")
		if !strings.EqualFold(name, "q") {
			continue
		}
		q, err := strconv.ParseFloat(value, 64)
		if err != nil || !(q >= 0 && q <= 1) {
			return 0
		}
		return q
	}
	return 1
}

// matches reports whether If-None-Match names the tag, in whatever list and also as a weak one: a proxy that compresses
// on its own makes tags weak. tag holds no comma and no quote.
func matches(r *http.Request, tag string) bool {
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("If-None-Match"), ","), ",") {
		part = strings.TrimSpace(part)
		if part == "*" || strings.TrimPrefix(part, "W/") == `"`+tag+`"` {
			return true
		}
	}
	return false
}
