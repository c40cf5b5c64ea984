package server

import (
	"log/slog"
	"sync"
	"time"
)

// episodes keeps the log readable when the same trouble repeats: the first occurrence of a reason is logged, further
// ones are counted and told with the next line, at most one line a minute for each reason. Reasons are a fixed set.
type episodes struct {
	log *slog.Logger

	mu   sync.Mutex
	last map[string]episode
}

type episode struct {
	logged time.Time
	silent int // occurrences since then
}

const episodePause = time.Minute

func newEpisodes(log *slog.Logger) *episodes {
	return &episodes{log: log, last: make(map[string]episode)}
}

// warn logs msg with attrs unless it did so for the reason within the last minute.
func (e *episodes) warn(reason, msg string, attrs ...any) {
	now := time.Now()
	e.mu.Lock()
	ep, seen := e.last[reason]
	if seen && now.Sub(ep.logged) < episodePause {
		ep.silent++
		e.last[reason] = ep
		e.mu.Unlock()
		return
	}
	e.last[reason] = episode{logged: now}
	e.mu.Unlock()
	attrs = append(attrs, "reason", reason)
	if ep.silent > 0 {
		attrs = append(attrs, "not_logged_before", ep.silent)
	}
	e.log.Warn(msg, attrs...)
}
