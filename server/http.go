package server

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// Limits of an HTTP connection that need no option.
const (
	readHeaderTimeout = 5 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
	// writeTimeout is what an answer may take; a handler that answers for longer moves its own deadline.
	writeTimeout = 30 * time.Second
)

// RESTHandler answers the paths in RESTPaths. Shutdown makes answers without end stop; it returns at once.
type RESTHandler interface {
	http.Handler
	Shutdown()
}

// newHTTP builds the HTTP server. It has no read timeout for whole requests, because that would end long answers, too;
// bodies have one of their own, see boundedRequests.
func newHTTP(o *Options, ready *readiness, gateway, metrics http.Handler) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("/healthz", allow(readOnly, func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") }))
	mux.Handle("/readyz", allow(readOnly, func(w http.ResponseWriter, _ *http.Request) {
		p, _ := ready.phase()
		if p != serving {
			plain(w, http.StatusServiceUnavailable, "not ready: "+p.String())
			return
		}
		plain(w, http.StatusOK, p.String())
	}))
	mux.Handle("/metrics", allow(readOnly, metrics.ServeHTTP))
	mux.Handle("/v1/load_monitor/workers", allow("GET, HEAD, POST", gateway.ServeHTTP))
	mux.Handle("/v1/load_monitor/workers/{id}", allow("DELETE", gateway.ServeHTTP))
	if o.REST != nil {
		for _, p := range RESTPaths {
			mux.Handle(p, o.REST)
			mux.Handle(p+"/{$}", o.REST)
		}
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, codes.NotFound, "no such path")
	})

	return &http.Server{
		Handler:           boundedRequests(sameOrigin(mux), int64(o.MaxBodyBytes), o.BodyTimeout),
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
	}
}

// boundedRequests reads each request's body before anybody looks at it: at most limit bytes, within timeout. Handlers
// meet a body that is in memory, so none of them can be held up or fed without end.
func boundedRequests(h http.Handler, limit int64, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		now := time.Now()
		_ = rc.SetWriteDeadline(now.Add(writeTimeout))
		if r.ContentLength != 0 {
			if r.ContentLength > limit {
				w.Header().Set("Connection", "close")
				bodyError(w, &http.MaxBytesError{Limit: limit})
				return
			}
			_ = rc.SetReadDeadline(now.Add(timeout))
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
			if err != nil {
				w.Header().Set("Connection", "close")
				bodyError(w, err)
				return
			}
			_ = rc.SetReadDeadline(time.Time{})
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		h.ServeHTTP(w, r)
	})
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// sameOrigin refuses requests that a browser sends on behalf of another site's page and that could change something.
func sameOrigin(h http.Handler) http.Handler {
	p := http.NewCrossOriginProtection()
	p.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusForbidden, codes.PermissionDenied, "cross-origin requests may only read")
	}))
	return p.Handler(h)
}

const readOnly = "GET, HEAD"

// allow lets the methods of a list through.
func allow(methods string, h http.HandlerFunc) http.Handler {
	list := strings.Split(methods, ", ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(list, r.Method) {
			w.Header().Set("Allow", methods)
			refuse(w, http.StatusMethodNotAllowed, codes.Unimplemented, "method is not allowed here: want one of "+methods)
			return
		}
		h(w, r)
	})
}

func plain(w http.ResponseWriter, httpStatus int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(httpStatus)
	_, _ = io.WriteString(w, text+"\n") // a peer that left does not need it
}
