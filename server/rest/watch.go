package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

const (
	// maxWatchInterval is the longest interval that a reader may ask for.
	maxWatchInterval = time.Minute
	// watchBytesPerSecond is what all watches together send at most: lines are whole snapshots, so many watches of a large
	// fleet get a longer interval instead of slowing ingest (rule W8).
	watchBytesPerSecond = 256 << 20
)

// serveWatch sends the newest version at once and then after each change, conflated to the newest, one JSON object a line;
// when nothing changes, a heartbeat a second, ticked by the publisher (rule W4). It ends when the reader leaves or takes
// nothing for the stall limit, and on shutdown.
func (h *Handler) serveWatch(w http.ResponseWriter, r *http.Request) {
	asked, err := askedInterval(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, codeInvalidArgument, err.Error())
		return
	}
	// net/http notices that a reader left only after it has read the request's body.
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close")
		refuse(w, http.StatusBadRequest, codeInvalidArgument, "request has a body: send none")
		return
	}
	if h.stopping.Err() != nil {
		refuse(w, http.StatusServiceUnavailable, codeUnavailable, load.ErrShuttingDown.Error())
		return
	}
	if h.watchers.Add(1) > h.maxWatchers {
		h.watchers.Add(-1)
		h.refused.Add(1)
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, codeResourceExhausted,
			fmt.Sprintf("%v: %d are open", load.ErrTooManyWatchers, h.maxWatchers))
		return
	}
	defer h.watchers.Add(-1)

	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // a proxy that collects lines would make them old
	if r.Method == http.MethodHead {
		return
	}
	out := newStallWriter(w, h.stallLimit)
	defer out.release()
	defer context.AfterFunc(h.stopping, out.hurry)()
	h.ended(r, out, h.follow(r.Context(), out, asked))
}

// askedInterval reads min_interval_ms, 0 when it is not given. An unknown parameter is refused rather than ignored: it
// would be a filter that does not filter.
func askedInterval(r *http.Request) (time.Duration, error) {
	for name := range r.URL.Query() {
		if name != "min_interval_ms" {
			return 0, fmt.Errorf("query parameter %q is unknown: want min_interval_ms or none", name)
		}
	}
	text := r.URL.Query().Get("min_interval_ms")
	if text == "" {
		return 0, nil
	}
	ms, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("min_interval_ms is %q: want a whole number of milliseconds", text)
	}
	return min(time.Duration(ms)*time.Millisecond, maxWatchInterval), nil
}

// follow writes lines until the reader leaves or shutdown, and returns why it ended.
func (h *Handler) follow(ctx context.Context, out *stallWriter, asked time.Duration) error {
	var (
		sent  *rendering
		beat  uint64    // of the newest publication when the last line was written
		next  time.Time // when the next snapshot line is due at the earliest
		timer = time.NewTimer(0)
	)
	defer timer.Stop()
	for {
		var (
			now  = time.Now()
			pub  = h.source.Current()
			wait time.Duration // above 0: a newer version is there and not due yet
		)
		if !sent.shows(pub.Snapshot) {
			if wait = next.Sub(now); wait <= 0 {
				var newest *rendering
				newest, wait = h.renderer.latest()
				if newest != sent {
					sent, beat, next = newest, pub.Beat, now.Add(h.interval(asked, len(newest.body)))
					if err := writeLine(out, newest.body); err != nil {
						return err
					}
					continue
				}
			}
		}
		if pub.Beat != beat {
			beat = pub.Beat
			if err := writeLine(out, appendHeartbeat(nil, sent)); err != nil {
				return err
			}
			continue
		}
		newer := pub.Next
		if wait > 0 {
			// The next line is of whatever version is newest then, so the versions until then need not wake anybody; the
			// heartbeats between do.
			newer = nil
			timer.Reset(min(wait, h.minInterval))
		}
		select {
		case <-newer:
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-h.stopping.Done():
			line := append(appendError([]byte(`{"error":`), codeUnavailable, load.ErrShuttingDown.Error()), "}\n"...)
			return errors.Join(load.ErrShuttingDown, writeLine(out, line))
		}
	}
}

// interval returns the time between two lines of the given size.
func (h *Handler) interval(asked time.Duration, size int) time.Duration {
	share := float64(h.watchers.Load()) * float64(size) / watchBytesPerSecond
	return max(asked, h.minInterval, time.Duration(share*float64(time.Second)))
}

func writeLine(out *stallWriter, line []byte) error {
	if _, err := out.Write(line); err != nil {
		return err
	}
	return out.Flush()
}

// appendHeartbeat appends the line that says that the link and the publisher live; version is the one last sent.
func appendHeartbeat(b []byte, sent *rendering) []byte {
	b = append(b, `{"heartbeat":true,"epoch":`...)
	b = appendString(b, sent.epoch)
	b = append(b, `,"version":`...)
	b = strconv.AppendUint(b, sent.version, 10)
	return append(b, "}\n"...)
}

// appendError appends an error in the shape of the gateway's.
func appendError(b []byte, code int, message string) []byte {
	b = append(b, `{"code":`...)
	b = strconv.AppendInt(b, int64(code), 10)
	b = append(b, `,"message":`...)
	b = appendString(b, message)
	return append(b, `,"details":[]}`...)
}
