package integration

import (
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/loadmonitor/loadmonitor/client"
	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// watcher is one router: a client, and a goroutine that compares every view that it sees with what GetSnapshot answers at
// the view's version.
type watcher struct {
	name    string
	options client.Options
	client  *client.Client
	life    func(epoch string) *monitor
	done    chan struct{}
	ended   sync.WaitGroup

	// Used by the history alone.
	heldUp  bool      // frozen or gated
	touched time.Time // when that, or the connection, was changed last
	prompt  bool      // showed the newest at the last checkpoint, over a live link, and was left alone since

	mu       sync.Mutex
	compared int            // guarded by mu
	err      error          // guarded by mu; the first difference
	kept     []*client.View // guarded by mu; some views, to see that they never change
}

// newWatcher starts watcher i of a history: the first few are plain, filtered, without ranks and so on, later ones mix.
func (h *history) newWatcher(i int) *watcher {
	o := client.Options{DialOptions: []grpc.DialOption{grpc.WithContextDialer(h.network.dialer(fmt.Sprintf("watcher%d", i)))}}
	switch i {
	case 0:
	case 1:
		o.Filter = h.filter()
	case 2:
		o.WithoutRanks = true
	case 3:
		o.FullOnly = true
		o.MinInterval = h.upTo(300 * time.Millisecond)
	default:
		o.Filter, o.WithoutRanks, o.FullOnly = h.filter(), h.r.IntN(2) == 0, h.r.IntN(2) == 0
	}
	if i > 0 && h.r.IntN(3) == 0 {
		o.MinInterval = h.upTo(2 * time.Second)
	}
	if h.r.IntN(4) == 0 {
		o.LinkTimeout = 10 * time.Second
	}
	w := &watcher{name: fmt.Sprintf("watcher%d", i), options: o, life: h.life, done: make(chan struct{})}
	var err error
	if w.client, err = client.Dial("passthrough:///monitor", o); err != nil {
		h.t.Fatal(err)
	}
	h.notef("%s: filter %+v, without ranks %t, full only %t, interval %v", w.name, o.Filter, o.WithoutRanks, o.FullOnly, o.MinInterval)
	w.ended.Go(w.watch)
	return w
}

func (h *history) filter() client.Filter {
	var f client.Filter
	pick := func(n int) bool { return h.r.IntN(n) == 0 }
	if pick(3) {
		for i := range places {
			if pick(2) {
				f.IDs = append(f.IDs, fmt.Sprintf("w%d", i))
			}
		}
	}
	if pick(3) {
		f.Models = []string{"m1"}
	}
	if pick(3) {
		f.Roles = []load.Role{load.RoleRegular, load.RoleDecode}
	}
	if pick(3) {
		f.Zones = []string{"z1", ""}[:1+h.r.IntN(2)]
	}
	return f
}

// filter returns the filter in the API's words.
func (w *watcher) filter() *loadmonitorpb.Filter {
	f := w.options.Filter
	roles := make([]loadmonitorpb.Role, len(f.Roles))
	for i, r := range f.Roles {
		roles[i] = loadmonitorpb.Role(r)
	}
	return loadmonitorpb.Filter_builder{Ids: f.IDs, Models: f.Models, Roles: roles, Zones: f.Zones}.Build()
}

func (w *watcher) truth(m *monitor) watcherTruth {
	return watcherTruth{withoutRanks: w.options.WithoutRanks, zero: m.zero}
}

func (w *watcher) watch() {
	var epoch string
	var version uint64
	for {
		v := w.client.View()
		err := w.compare(v)
		if v.Epoch == epoch && v.Version < version && err == nil {
			err = fmt.Errorf("version went back from %d to %d", version, v.Version)
		}
		epoch, version = v.Epoch, v.Version
		w.mu.Lock()
		if w.err == nil {
			w.err = err
		}
		if v.Epoch != "" {
			w.compared++
			if len(w.kept) < 4 {
				w.kept = append(w.kept, v)
			}
		}
		w.mu.Unlock()
		select {
		case <-v.Changed():
		case <-w.done:
			return
		}
	}
}

func (w *watcher) compare(v *client.View) error {
	if v.Epoch == "" {
		return nil // nothing has arrived yet
	}
	m := w.life(v.Epoch)
	if m == nil {
		return fmt.Errorf("epoch %q is of no life of the monitor", v.Epoch)
	}
	all, err := m.archive.at(v.Version)
	if err != nil {
		return err
	}
	if d := compare(v, all.filtered(w.options.Filter), w.truth(m)); d != "" {
		return fmt.Errorf("version %d (link up %t):\n%s", v.Version, v.Link.Up, d)
	}
	return nil
}

// trouble returns what went wrong so far.
func (w *watcher) trouble() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := w.client.Stats().Violations; w.err == nil && n > 0 {
		return fmt.Errorf("%d violations of the watch contract: %v", n, w.client.View().Link.Err)
	}
	return w.err
}

// unchanged compares views that were kept once more: they and their snapshots never change.
func (w *watcher) unchanged() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, v := range w.kept {
		if err := w.compare(v); err != nil {
			return fmt.Errorf("a view that was kept changed: %w", err)
		}
	}
	return nil
}

func (w *watcher) stop() {
	close(w.done)
	w.client.Close()
	w.ended.Wait()
}

// disturb does to a watcher's link what networks and slow readers do.
func (h *history) disturb(w *watcher) {
	switch h.r.IntN(6) {
	case 0:
		h.freeze(w)
	case 1:
		h.gate(w)
	case 2, 3:
		h.cut(w)
	default:
		h.goOn(w)
	}
}

func (w *watcher) touch(heldUp bool) { w.heldUp, w.touched, w.prompt = heldUp, time.Now(), false }

func (h *history) freeze(w *watcher) {
	h.notef("%s takes no bytes", w.name)
	h.tally.freezes++
	w.touch(true)
	h.network.freeze(w.name)
}

func (h *history) gate(w *watcher) {
	h.notef("%s takes no frames", w.name)
	h.tally.gates++
	w.touch(true)
	h.sends.close(w.name)
}

func (h *history) cut(w *watcher) {
	h.notef("%s is cut", w.name)
	h.tally.cuts++
	w.touch(w.heldUp)
	h.network.cut(w.name)
}

// goOn ends what holds the watcher up.
func (h *history) goOn(w *watcher) {
	h.notef("%s goes on", w.name)
	w.touch(false)
	h.network.thaw(w.name)
	h.sends.open(w.name)
}
