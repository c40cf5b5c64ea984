package rest

import (
	"errors"
	"net/http"
	"os"
	"sync"
	"time"
)

// stallChunk is what a reader has to take within the stall limit: large bodies go out in such pieces, so that a slow
// reader who makes progress is not taken for one who stopped.
const stallChunk = 64 << 10

// hurryLimit replaces the stall limit once the monitor is stopping.
const hurryLimit = time.Second

// stallWriter writes to a reader and fails once that reader has taken nothing for the limit. Where the connection knows
// no deadlines there is no limit.
type stallWriter struct {
	w  http.ResponseWriter
	rc *http.ResponseController

	mu    sync.Mutex    // orders the setting of deadlines, which does not block
	limit time.Duration // guarded by mu
	done  bool          // guarded by mu: the connection is no longer ours
}

func newStallWriter(w http.ResponseWriter, limit time.Duration) *stallWriter {
	return &stallWriter{w: w, rc: http.NewResponseController(w), limit: limit}
}

// Write writes all of b or fails.
func (s *stallWriter) Write(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		s.extend()
		k, err := s.w.Write(b[n:min(n+stallChunk, len(b))])
		n += k
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Flush sends what is buffered. After it the reader owes nothing, so no time runs until the next write.
func (s *stallWriter) Flush() error {
	s.extend()
	if err := s.rc.Flush(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.rc.SetWriteDeadline(time.Time{})
	return nil
}

// extend gives the next write its time.
func (s *stallWriter) extend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.limit))
}

// hurry shortens the limit, for a write that is blocked already too. It may be called from any goroutine.
func (s *stallWriter) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return
	}
	s.limit = min(s.limit, hurryLimit)
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.limit))
}

// release gives the connection back; hurry does not touch it any more.
func (s *stallWriter) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = true
}

// ended counts and tells why a reader's answer was cut short. That the reader left is not worth telling.
func (h *Handler) ended(r *http.Request, out *stallWriter, err error) {
	if !errors.Is(err, os.ErrDeadlineExceeded) || h.stopping.Err() != nil {
		return
	}
	h.stalled.Add(1)
	h.log.Info("reader took nothing for too long and was cut off", "path", r.URL.Path, "peer", r.RemoteAddr, "limit", h.stallLimit)
}
