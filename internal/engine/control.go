package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The control API disturbs the fleet from outside:
//
//	POST /control/{action}?worker=<number or URL>[&rank=<number>]   see Action
//	GET  /control                                                   how every worker is
//
// A command answers 204 once it has taken effect, otherwise {"detail": "<why: the offender and what helps>"} with 400 (not a
// command), 404 (no such worker or rank), 409 (not in this condition) or 503 (the fleet is stopping). It has no
// credentials; pages of other origins are refused, since a browser on this machine could otherwise be made to call it.
func (f *Fleet) serveControl(ctx context.Context, l net.Listener, tasks *sync.WaitGroup) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /control", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, struct {
			Workers []WorkerState `json:"workers"`
		}{f.State()})
	})
	mux.HandleFunc("POST /control/{action}", f.serveCommand)
	server := &http.Server{
		Handler:           http.NewCrossOriginProtection().Handler(mux),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	tasks.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			f.fail(fmt.Errorf("control API: %w", err))
		}
	})
	tasks.Go(func() {
		<-ctx.Done()
		server.Close()
	})
}

func (f *Fleet) serveCommand(w http.ResponseWriter, req *http.Request) {
	query := req.URL.Query()
	c := Command{Action: Action(strings.ToLower(req.PathValue("action"))), Worker: query.Get("worker")}
	if text := query.Get("rank"); text != "" {
		rank, err := strconv.Atoi(text)
		if err != nil {
			answer(w, http.StatusBadRequest, refusal{fmt.Sprintf("%v: rank %q is not a number", ErrCommand, text)})
			return
		}
		c.Rank = &rank
	}
	if err := f.Do(req.Context(), c); err != nil {
		answer(w, commandStatus(err), refusal{err.Error()})
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func commandStatus(err error) int {
	switch {
	case errors.Is(err, ErrCommand):
		return http.StatusBadRequest
	case errors.Is(err, ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, ErrConflict):
		return http.StatusConflict
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
