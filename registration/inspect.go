package registration

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// inspection is what one GET /server_info came to; the facts mean something when it was answered.
type inspection struct {
	answer
	facts facts
}

// inspect asks one engine once what it is. It waits for a free slot, then takes at most the timeout, the body included.
// fresh wants a new connection: whoever is behind one that was kept may not be who is at the address now. The result means
// nothing when ctx has ended.
func (e *engines) inspect(ctx context.Context, w *load.Worker, keyFile string, why purpose, fresh bool) inspection {
	slots := e.probeSlots[why]
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return inspection{}
	}
	ctx, cancel := context.WithTimeout(ctx, e.timing.timeout)
	defer cancel()
	in := e.get(ctx, w, keyFile, fresh)
	if ctx.Err() != context.Canceled {
		e.probes[in.outcome].Add(1)
	}
	return in
}

func (e *engines) get(ctx context.Context, w *load.Worker, keyFile string, fresh bool) inspection {
	resp, failure := e.send(ctx, w, fresh, func(net.Conn) (*http.Request, answer) {
		return e.request(ctx, http.MethodGet, w, "/server_info", nil, keyFile)
	})
	if resp == nil {
		return inspection{answer: failure}
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		_, _ = io.CopyN(io.Discard, resp.Body, maxAnswerBytes) // to its end, so that the connection can be kept
		return inspection{answer: judgeInfo(resp.StatusCode, resp.Header, keyFile)}
	}
	in := inspection{answer: answer{http: resp.StatusCode}}
	var err error
	in.facts, err = readServerInfo(resp.Body, e.maxRanks)
	switch {
	case err == nil:
	case errors.Is(err, errNoObject):
		in.refuse(unexpected, "/server_info is no JSON object: check that the address is an engine's own")
	case errors.Is(err, errTooLarge):
		in.refuse(unexpected, "/server_info is larger than any engine's: check that the address is an engine's own")
	default:
		in.answer = failed(err)
		in.http = resp.StatusCode
	}
	return in
}

// judgeInfo reads a status that is no success. keyFile names the file whose key was sent, if any.
func judgeInfo(status int, header http.Header, keyFile string) answer {
	a := answer{http: status}
	switch {
	case status >= 300 && status < 400:
		a.refuse(unexpected, "redirects are not followed: configure the engine's final address")
	case status == http.StatusUnauthorized && keyFile == "":
		a.refuse(unauthorized, "the engine wants its API key for /server_info: name a file that holds it as api_key_file of this worker")
	case status == http.StatusUnauthorized:
		a.refuse(unauthorized, "the engine does not take the API key in "+keyFile+" for /server_info: put its own there")
	case status == http.StatusForbidden:
		a.refuse(forbidden, "the engine does not let this monitor read /server_info")
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		a.refuse(unsupported, "the engine has no /server_info")
	case status == http.StatusTooManyRequests:
		a.refuse(throttled, "too many requests for /server_info: tried again soon")
		a.retryAfter = retryAfter(header)
	case status >= 500 && status != http.StatusNotImplemented:
		a.refuse(serverError, "the engine cannot answer /server_info: tried again soon")
		a.retryAfter = retryAfter(header)
	default:
		a.refuse(unexpected, "the engine refuses /server_info: check that the address is an engine's own")
	}
	return a
}

// definite reports whether an engine that fails in this way is there and has told all that it will tell for now. An
// episode that is no longer young is no start of an engine any more.
func (a *answer) definite(young bool) bool {
	switch {
	case a.away:
		return false
	case a.outcome == throttled, a.outcome == serverError, a.outcome == unreachable:
		return !young
	}
	return true
}

// probeIn draws when to ask an engine again that has answered.
func (t timing) probeIn() time.Duration { return t.probe*9/10 + jitter(t.probe/5) }
