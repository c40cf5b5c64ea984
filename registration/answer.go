package registration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// outcome is how one request to an engine ended: the label of the request counter.
type outcome uint8

const (
	granted      outcome = iota // or, of /server_info, answered
	unauthorized                // 401
	forbidden                   // 403
	unsupported                 // 404, 405: no such endpoint
	owned                       // 409: the target belongs to a worker of another origin
	unprocessed                 // 422: schema
	throttled                   // 429
	dependency                  // 501: the engine lacks an optional dependency
	serverError                 // other 5xx
	unexpected                  // any other status, or an answer that is no engine's
	shortLease                  // a lease that cannot be kept
	timedOut                    // no answer in time
	unreachable                 // no connection, or it broke
	badToken                    // the token could not be read
	unadvertised                // there is no address that this engine could dial
	outcomes                    // how many there are
)

var outcomeNames = [outcomes]string{
	"granted", "unauthorized", "forbidden", "unsupported", "owned", "unprocessed", "throttled", "dependency", "server_error",
	"unexpected", "short_lease", "timeout", "unreachable", "token_file", "unadvertised",
}

// soon reports whether the trouble may pass by itself within seconds. After the rest only a change at the engine, in the
// configuration or in the topology helps.
func (o outcome) soon() bool {
	switch o {
	case throttled, serverError, timedOut, unreachable, badToken:
		return true
	}
	return false
}

// answer is what one request came to. It holds nothing that the engine said but its status and three numbers.
type answer struct {
	outcome    outcome
	http       int           // status; 0: the engine gave none
	reason     string        // for people, with the remedy; empty when granted
	away       bool          // nobody was there to answer
	retryAfter time.Duration // asked for by the engine; 0: not
	leaseMs    int64         // as told; 0: not
	renewMs    int64
}

// judge reads an engine's answer. body is at most maxAnswerBytes; token names the token file that was used, if any.
func judge(status int, header http.Header, body []byte, token string) answer {
	a := answer{http: status}
	switch {
	case status >= 200 && status < 300:
		a.readGrant(body)
	case status >= 300 && status < 400:
		a.refuse(unexpected, "redirects are not followed: configure the engine's final address")
	case status == http.StatusUnauthorized && token == "":
		a.refuse(unauthorized, "the engine wants its admin API key: name a file that holds it as token_file of this worker")
	case status == http.StatusUnauthorized:
		a.refuse(unauthorized, fmt.Sprintf("the engine does not take the token in %s: put its admin API key there", token))
	case status == http.StatusForbidden:
		a.refuse(forbidden, "the engine has no admin API key, so no token helps: start the engine with one")
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		a.refuse(unsupported, "the engine has no /v1/start_reporting: use a version that reports its load, and its own address")
	case status == http.StatusConflict:
		a.refuse(owned, "the engine reports to this monitor under another address already: register it once; tried again after one lease")
	case status == http.StatusUnprocessableEntity:
		a.refuse(unprocessed, "the engine does not understand the request: its version does not match this monitor's")
	case status == http.StatusTooManyRequests:
		a.refuse(throttled, "too many requests: tried again soon")
		a.retryAfter = retryAfter(header)
	case status == http.StatusNotImplemented:
		a.refuse(dependency, "the engine lacks an optional dependency for reporting its load: install it there")
	case status == http.StatusServiceUnavailable:
		a.refuse(serverError, "the engine is shutting down or not ready: tried again soon")
		a.retryAfter = retryAfter(header)
	case status >= 500:
		a.refuse(serverError, "the engine failed: tried again soon")
		a.retryAfter = retryAfter(header)
	default:
		a.refuse(unexpected, "the engine refuses the request: check that the address is an engine's own")
	}
	return a
}

func (a *answer) refuse(o outcome, text string) {
	a.outcome, a.reason = o, fmt.Sprintf("HTTP %d: %s", a.http, text)
}

// readGrant reads the numbers of a grant. An engine may send neither, so an empty body and any JSON will do; numbers that
// make no sense count as not told.
func (a *answer) readGrant(body []byte) {
	a.outcome = granted
	if len(bytes.TrimSpace(body)) == 0 {
		return
	}
	if len(body) > maxAnswerBytes || !json.Valid(body) {
		a.refuse(unexpected, "the answer is not JSON: check that the address is an engine's own")
		return
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil {
		return
	}
	a.leaseMs = milliseconds(fields["lease_ttl_ms"])
	a.renewMs = milliseconds(fields["renew_after_ms"])
}

// milliseconds reads a positive JSON number; anything else is 0.
func milliseconds(raw json.RawMessage) int64 {
	const century = 100 * 366 * 24 * 3600 * 1000
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || !(f >= 1 && f <= century) {
		return 0
	}
	return int64(f)
}

// retryAfter reads the header's form in seconds. The form with a date would compare the engine's clock with ours (rule
// FR1), so it counts as not sent.
func retryAfter(header http.Header) time.Duration {
	n, err := strconv.ParseUint(strings.TrimSpace(header.Get("Retry-After")), 10, 31)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Second
}
