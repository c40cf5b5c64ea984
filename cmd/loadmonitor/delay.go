package main

import (
	"slices"
	"sync"
	"time"

	"github.com/loadmonitor/loadmonitor/client"
)

// delays measures how long a report takes from the moment an engine sends it to the moment a watcher's view shows it.
// Engines and watcher must share this process's clock.
type delays struct {
	mu      sync.Mutex
	sent    map[string]*sends // by source instance
	samples []time.Duration
	shown   map[string]uint64 // newest sequence of each worker in the view, by id
}

// sends remembers when the newest reports of one source were sent.
type sends struct {
	sequence [64]uint64
	at       [64]time.Time
}

func newDelays() *delays {
	return &delays{sent: map[string]*sends{}, shown: map[string]uint64{}}
}

// onSend is called by an engine with each report it sends.
func (d *delays) onSend(source string, sequence uint64) {
	at := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.sent[source]
	if s == nil {
		s = &sends{}
		d.sent[source] = s
	}
	i := sequence % uint64(len(s.sequence))
	s.sequence[i], s.at[i] = sequence, at
}

// onView takes the workers that changed in a view that was just published.
func (d *delays) onView(v *client.View) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for w := range v.All() {
		if d.shown[w.ID] == w.Sequence {
			continue
		}
		d.shown[w.ID] = w.Sequence
		if s := d.sent[w.SourceInstance]; s != nil {
			if i := w.Sequence % uint64(len(s.sequence)); s.sequence[i] == w.Sequence {
				d.samples = append(d.samples, now.Sub(s.at[i]))
			}
		}
	}
}

// percentiles returns how many reports were measured and the delay that the given shares of them do not pass.
func (d *delays) percentiles(shares ...float64) (n int, values []time.Duration) {
	d.mu.Lock()
	sorted := slices.Sorted(slices.Values(d.samples))
	d.mu.Unlock()
	values = make([]time.Duration, len(shares))
	if len(sorted) == 0 {
		return 0, values
	}
	for i, p := range shares {
		values[i] = sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
	}
	return len(sorted), values
}
