package rest

import (
	"net/http"
	"strconv"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// serveSnapshot answers with the newest version, or 304 when the reader has it. Plain and compressed bodies are two
// representations, each with a strong tag of its own: "<epoch>-<version>" and "<epoch>-<version>-gzip".
func (h *Handler) serveSnapshot(w http.ResponseWriter, r *http.Request) {
	newest, _ := h.renderer.latest()
	zip := acceptsGzip(r)
	tag := newest.tag
	if zip {
		tag += "-gzip"
	}
	header := w.Header()
	header.Set("ETag", `"`+tag+`"`)
	header.Set("Cache-Control", "no-cache")
	header.Set("Vary", "Accept-Encoding")
	// The body's ages are as of captured_at. This adds what has passed since then by the monitor's own clock, for readers
	// whose clock is another (rule VAL5).
	age := max(0, h.source.Now()-newest.captured) / load.Instant(time.Millisecond/time.Microsecond)
	header.Set("Snapshot-Age-Ms", strconv.FormatInt(int64(age), 10))
	if matches(r, tag) {
		h.notModified.Add(1)
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := newest.body
	if zip {
		body = newest.gzipped()
		header.Set("Content-Encoding", "gzip")
	}
	header.Set("Content-Type", "application/json")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	h.bodies.Add(1)
	if r.Method == http.MethodHead {
		return
	}
	out := newStallWriter(w, h.stallLimit)
	if _, err := out.Write(body); err != nil {
		h.ended(r, out, err)
	}
}
