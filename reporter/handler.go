package reporter

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// Path is where a monitor posts its registrations.
const Path = "/v1/start_reporting"

const (
	maxBody = 16 << 10
	// bodyTimeout bounds how long a body may take, however slowly it trickles.
	bodyTimeout = 5 * time.Second
)

// Handler serves POST /v1/start_reporting:
//
//	200  {"status": "registered" | "renewed", "lease_ttl_ms": n, "renew_after_ms": n}
//	400  the Host header is not an address
//	401  the bearer token is missing or wrong
//	403  no admin key is configured, so no token helps
//	405  not a POST
//	408  the body took too long
//	409  another worker address holds the lease on this target
//	413  the body is too large
//	422  the body is not the expected object
//	429  too many targets
//	503  not running yet, or shutting down
//
// A refusal is {"detail": "<what is wrong and what helps>"}. The worker address comes from the connection's scheme and
// the Host header, never from forwarding headers.
func (r *Reporter) Handler() http.Handler {
	return http.HandlerFunc(r.serveStart)
}

func (r *Reporter) serveStart(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, http.StatusMethodNotAllowed, fmt.Errorf("method %s: want POST", quoted(req.Method)))
		return
	}
	if status, err := r.authorize(w, req); err != nil {
		refuse(w, status, err)
		return
	}
	body, status, err := readBody(w, req)
	if err != nil {
		refuse(w, status, err)
		return
	}
	start, err := parseStartRequest(body)
	if err != nil {
		refuse(w, http.StatusUnprocessableEntity, err)
		return
	}
	scheme := "http"
	if req.TLS != nil {
		scheme = "https"
	}
	start.WorkerAddr = scheme + "://" + req.Host
	if _, _, err := load.ParseAddress(start.WorkerAddr); err != nil || strings.ContainsAny(req.Host, "/@?#") {
		refuse(w, http.StatusBadRequest, fmt.Errorf("header Host is %s: want the host:port under which this engine is known", quoted(req.Host)))
		return
	}
	lease, err := r.StartReporting(start)
	if err != nil {
		refuse(w, statusCode(err), err)
		return
	}
	word := "registered"
	if lease.Renewed {
		word = "renewed"
	}
	answer(w, http.StatusOK, struct {
		Status       string `json:"status"`
		LeaseTTLMs   int64  `json:"lease_ttl_ms"`
		RenewAfterMs int64  `json:"renew_after_ms"`
	}{word, lease.TTL.Milliseconds(), lease.RenewAfter.Milliseconds()})
}

// statusCode maps the sentinels of StartReporting.
func statusCode(err error) int {
	switch {
	case errors.Is(err, ErrInvalid):
		return http.StatusUnprocessableEntity
	case errors.Is(err, ErrTargetOwned):
		return http.StatusConflict
	case errors.Is(err, ErrTooManyTargets):
		return http.StatusTooManyRequests
	case errors.Is(err, ErrNotRunning):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// authorize checks the bearer token. It comes first, so that an unknown peer learns nothing and costs no body.
func (r *Reporter) authorize(w http.ResponseWriter, req *http.Request) (int, error) {
	if r.opts.AdminKey == "" {
		if r.opts.RequireAdminKey {
			return http.StatusForbidden, errors.New("no admin key is configured: start the engine with one")
		}
		return 0, nil
	}
	scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	// Digests have one length, so that the comparison tells nothing of the key's.
	want, got := sha256.Sum256([]byte(r.opts.AdminKey)), sha256.Sum256([]byte(strings.TrimSpace(token)))
	if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
		w.Header().Set("WWW-Authenticate", "Bearer")
		return http.StatusUnauthorized, errors.New("bearer token is missing or wrong: send the engine's admin key")
	}
	return 0, nil
}

// readBody reads a JSON body within its bounds of size and time.
func readBody(w http.ResponseWriter, req *http.Request) ([]byte, int, error) {
	if kind := req.Header.Get("Content-Type"); kind != "" {
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/json" {
			return nil, http.StatusUnprocessableEntity, fmt.Errorf("content type is %s: want application/json", quoted(kind))
		}
	}
	tooLarge := fmt.Errorf("body is larger than %d bytes", maxBody)
	if req.ContentLength > maxBody {
		w.Header().Set("Connection", "close") // nobody wants to read the rest
		return nil, http.StatusRequestEntityTooLarge, tooLarge
	}
	// A writer without deadlines (a test's recorder, HTTP/2 without support) leaves the server's own timeouts.
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	if err == nil {
		_ = control.SetReadDeadline(time.Time{})
		return body, 0, nil
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, http.StatusRequestEntityTooLarge, tooLarge
	}
	w.Header().Set("Connection", "close")
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, http.StatusRequestTimeout, fmt.Errorf("body took longer than %v", bodyTimeout)
	}
	return nil, http.StatusBadRequest, fmt.Errorf("reading the body: %w", err)
}

func refuse(w http.ResponseWriter, status int, err error) {
	answer(w, status, struct {
		Detail string `json:"detail"`
	}{err.Error()})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the peer may have left
}
