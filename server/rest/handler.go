package rest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// The paths that a Handler serves.
const (
	SnapshotPath = "/v1/load_monitor/snapshot"
	WatchPath    = "/v1/load_monitor/watch"
	OpenAPIPath  = "/openapi.json"
)

// Source is where snapshots come from.
type Source interface {
	// Current returns the newest publication, never nil and never without a snapshot. It is wait-free.
	Current() *load.Publication
	// Now reads the clock of the snapshots' instants.
	Now() load.Instant
}

// Options say what a Handler serves and how much of it.
type Options struct {
	Source Source // required

	// MinInterval is the shortest time between two renderings, and so between two lines of a watch. 0: 100 ms.
	MinInterval time.Duration
	// StallLimit is how long a reader may take nothing before it is cut off (rule W3). 0: 10 s.
	StallLimit time.Duration
	// MaxWatchers bounds the watches that are open at once; more are refused with 503 (rule LIFE2). 0: 64.
	MaxWatchers int

	Logger *slog.Logger // nil: no log
}

// Handler serves snapshot, watch and OpenAPI file. Other paths are answered with 404, other methods than GET and HEAD
// with 405, and a path with a slash at its end is redirected to the one without (308). It sends no CORS headers.
type Handler struct {
	// Immutable after New.
	source      Source
	minInterval time.Duration
	stallLimit  time.Duration
	maxWatchers int64
	log         *slog.Logger
	renderer    *renderer
	openAPITag  string
	stopping    context.Context // done once Shutdown was called
	stop        context.CancelFunc

	watchers    atomic.Int64
	refused     atomic.Uint64 // watches beyond MaxWatchers
	stalled     atomic.Uint64 // readers cut off
	bodies      atomic.Uint64 // snapshot answers with a body
	notModified atomic.Uint64 // snapshot answers without
}

// New returns a handler. It fails when an option is missing or out of range.
func New(o Options) (*Handler, error) {
	if o.Source == nil {
		return nil, errors.New("rest: Options.Source is nil: name where snapshots come from")
	}
	if o.MinInterval < 0 || o.StallLimit < 0 || o.MaxWatchers < 0 {
		return nil, fmt.Errorf("rest: MinInterval %v, StallLimit %v, MaxWatchers %d: none may be negative (0 is the default)",
			o.MinInterval, o.StallLimit, o.MaxWatchers)
	}
	h := &Handler{
		source:      o.Source,
		minInterval: orDefault(o.MinInterval, 100*time.Millisecond),
		stallLimit:  orDefault(o.StallLimit, 10*time.Second),
		maxWatchers: int64(orDefault(o.MaxWatchers, 64)),
		log:         orDefault(o.Logger, slog.New(slog.DiscardHandler)),
		openAPITag:  openAPITag(),
	}
	h.renderer = &renderer{source: h.source, minInterval: h.minInterval}
	h.stopping, h.stop = context.WithCancel(context.Background())
	return h, nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// Shutdown ends every watch with a line that says so and refuses new ones; the snapshot is served on, so that readers
// are not cut off while the monitor drains. It returns at once and may be called more than once.
func (h *Handler) Shutdown() { h.stop() }

// Mount registers the handler for its paths.
func (h *Handler) Mount(mux *http.ServeMux) {
	for _, path := range []string{SnapshotPath, WatchPath, OpenAPIPath} {
		mux.Handle(path, h)
		mux.Handle(path+"/{$}", h)
	}
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimSuffix(r.URL.Path, "/")
	var serve http.HandlerFunc
	switch path {
	case SnapshotPath:
		serve = h.serveSnapshot
	case WatchPath:
		serve = h.serveWatch
	case OpenAPIPath:
		serve = h.serveOpenAPI
	default:
		refuse(w, http.StatusNotFound, codeNotFound, "no such path: want "+SnapshotPath+", "+WatchPath+" or "+OpenAPIPath)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, codeUnimplemented, "method is not allowed here: want GET or HEAD")
		return
	}
	if path != r.URL.Path {
		to := *r.URL
		to.Path, to.RawPath = path, ""
		http.Redirect(w, r, to.RequestURI(), http.StatusPermanentRedirect)
		return
	}
	serve(w, r)
}

// Codes of a refusal: gRPC's, as in the gateway's answers.
const (
	codeInvalidArgument   = 3
	codeNotFound          = 5
	codeResourceExhausted = 8
	codeUnimplemented     = 12
	codeUnavailable       = 14
)

// refuse answers with an error in the shape of the gateway's.
func refuse(w http.ResponseWriter, status, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(appendError(nil, code, message)) // a reader who left does not need it
}
