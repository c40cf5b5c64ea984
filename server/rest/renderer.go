package rest

import (
	"bytes"
	"compress/gzip"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// rendering is one version as JSON. It is immutable and shared by all its readers; a slow reader keeps it alive.
type rendering struct {
	epoch    string
	version  uint64
	captured load.Instant
	body     []byte
	tag      string        // opaque part of the entity tag
	gzipped  func() []byte // the body compressed, made by the first reader who wants it
}

// shows reports whether r is the JSON of s.
func (r *rendering) shows(s *load.Snapshot) bool {
	return r != nil && r.version == s.Version && r.epoch == s.Epoch
}

// renderer turns versions into JSON: each at most once, one at a time, and not more often than its pace allows.
type renderer struct {
	source      Source        // immutable
	minInterval time.Duration // immutable

	newest atomic.Pointer[rendering] // written under mu
	count  atomic.Uint64

	mu        sync.Mutex
	notBefore time.Time // guarded by mu: when the next rendering may start
}

// latest returns the newest version as JSON. After a quiet interval that is the published one. Under load it may be an
// older one by up to the interval: wait then says in how long a newer one can be had; otherwise wait is 0.
func (r *renderer) latest() (out *rendering, wait time.Duration) {
	if out := r.newest.Load(); out.shows(r.source.Current().Snapshot) {
		return out, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s, out := r.source.Current().Snapshot, r.newest.Load()
	if out.shows(s) {
		return out, 0
	}
	start := time.Now()
	if wait := r.notBefore.Sub(start); out != nil && wait > 0 {
		return out, wait
	}
	out = render(s, out)
	// A fleet so large that rendering takes longer than the interval still leaves the CPU half of the time.
	r.notBefore = start.Add(max(r.minInterval, 2*time.Since(start)))
	r.newest.Store(out)
	r.count.Add(1)
	return out, 0
}

// render makes the JSON of s. The rendering before it tells how much room that takes.
func render(s *load.Snapshot, before *rendering) *rendering {
	room := 1024
	if before != nil {
		room = len(before.body) + len(before.body)/16
	}
	body := appendSnapshot(make([]byte, 0, room), s)
	return &rendering{
		epoch:    s.Epoch,
		version:  s.Version,
		captured: s.Captured,
		body:     body,
		// The epoch is opaque: escaping keeps quotes, commas and what else a header cannot hold out of the tag.
		tag:     url.PathEscape(s.Epoch) + "-" + strconv.FormatUint(s.Version, 10),
		gzipped: sync.OnceValue(func() []byte { return compress(body) }),
	}
}

// compress prefers speed: the text is so repetitive that the fastest level already makes it ten times smaller.
func compress(body []byte) []byte {
	var out bytes.Buffer
	z, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed) // fails for unknown levels only
	_, _ = z.Write(body)                              // a bytes.Buffer takes everything
	_ = z.Close()
	return out.Bytes()
}
