package drive

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/loadmonitor/loadmonitor/client"
)

// View is a watcher that decodes, as a router in Go does, and measures how long a fleet's reports take from their send to
// its view.
type View struct {
	client *client.Client
	fleet  *Fleet
	first  time.Duration
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	delays Delays // guarded by mu
	views  uint64 // guarded by mu

	shown []*client.Status // used only by follow: of the view before
}

// Decode opens a decoding watcher at target and waits for its first picture.
func Decode(ctx context.Context, target string, f *Fleet) (*View, error) {
	c, err := client.New("passthrough:///"+target, client.Options{})
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	v := &View{client: c, fleet: f, stop: stop}
	begin := time.Now()
	v.done.Go(func() { _ = c.Run(running) })
	if _, err := c.Wait(ctx, func(v *client.View) bool { return v.Epoch != "" }); err != nil {
		v.Close()
		return nil, fmt.Errorf("wait for the first picture: %w", err)
	}
	v.first = time.Since(begin)
	v.done.Go(func() { v.follow(running) })
	return v, nil
}

// Newest returns the newest view.
func (v *View) Newest() *client.View { return v.client.View() }

// First returns how long the first picture took, from before the connection was opened.
func (v *View) First() time.Duration { return v.first }

// follow looks at every view. What the first one holds was sent at some time before and is no delay.
func (v *View) follow(ctx context.Context) {
	for {
		view := v.client.View()
		v.look(view, time.Now())
		select {
		case <-view.Changed():
		case <-ctx.Done():
			return
		}
	}
}

func (v *View) look(view *client.View, now time.Time) {
	since := now.Sub(v.fleet.start)
	known := len(v.shown) == view.Len()
	if !known {
		v.shown = make([]*client.Status, view.Len())
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.views++
	i := 0
	for w := range view.All() {
		before := v.shown[i]
		v.shown[i] = w.Status
		i++
		if !known || before == w.Status || before.Sequence == w.Sequence || !strings.HasPrefix(w.SourceInstance, v.fleet.source) {
			continue
		}
		v.delays.Add(since - time.Duration(w.Sequence)*time.Microsecond)
	}
}

// Take returns the delays and the number of views since the last call.
func (v *View) Take() (*Delays, uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	d, n := v.delays, v.views
	v.delays, v.views = Delays{}, 0
	return &d, n
}

// Close ends the watcher and waits until it is gone.
func (v *View) Close() {
	v.stop()
	v.done.Wait()
}
