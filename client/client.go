package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

// windowSize is the static HTTP/2 window. A fixed one turns off gRPC's bandwidth estimator, which otherwise pings on
// every message and costs half of a watcher's CPU.
const windowSize = 1 << 20

// Client keeps a local view of the fleet's load. All methods may be called from any goroutine.
type Client struct {
	// immutable after New
	target      string
	dialOptions []grpc.DialOption
	request     *loadmonitorpb.WatchRequest // never sent itself
	linkTimeout time.Duration               // or three heartbeats
	log         *slog.Logger
	wake        chan struct{} // one slot; makes keepTime look at its deadlines again
	running     atomic.Bool
	stop        func() // ends what Dial started

	view  atomic.Pointer[View]
	count counters

	mu sync.Mutex
	// guarded by mu; held and clock are written only by Run's own goroutine, which therefore reads them without mu
	held      *picture // what the monitor said last
	clock     *clock   // of held's epoch
	ageing    *ageing  // what is shown instead of held while the link is down
	aged      time.Time
	link      Link
	heartbeat time.Duration
	stream    *stream // nil: none is open

	// used only by Run
	backoff  backoff
	distrust bool // the next stream must not resume
}

// New returns a client of the monitor at target, in gRPC's spelling, e.g. "127.0.0.1:50061" or "dns:///monitor:50061".
// Nothing happens before Run.
func New(target string, o Options) (*Client, error) {
	request, err := o.request()
	if err != nil {
		return nil, err
	}
	c := &Client{
		target: target,
		dialOptions: append([]grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithStaticStreamWindowSize(windowSize),
			grpc.WithStaticConnWindowSize(windowSize),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, PermitWithoutStream: true}),
		}, o.DialOptions...),
		request:     request,
		linkTimeout: o.LinkTimeout,
		log:         o.Logger,
		wake:        make(chan struct{}, 1),
		stop:        func() {},
		heartbeat:   defaultHeartbeat,
		link:        Link{Since: time.Now(), Err: ErrNotConnected},
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	// A target or an option that gRPC refuses is refused here and not once per try.
	conn, err := grpc.NewClient(target, c.dialOptions...)
	if err != nil {
		return nil, fmt.Errorf("client: monitor %q: %w", target, err)
	}
	if err := conn.Close(); err != nil {
		return nil, fmt.Errorf("client: monitor %q: %w", target, err)
	}
	c.view.Store(&View{Link: c.link, index: emptyIndex, changed: make(chan struct{})})
	return c, nil
}

// Dial returns a client that already runs. It does not wait for the monitor; see Wait. The caller must Close it.
func Dial(target string, o Options) (*Client, error) {
	c, err := New(target, o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	c.stop = func() {
		cancel()
		<-done
	}
	go func() {
		defer close(done)
		_ = c.Run(ctx) // ends with ctx only, without an error
	}()
	return c, nil
}

// Close ends a client that Dial returned and waits until it has ended. On one that New returned it does nothing: there
// Run ends with its context.
func (c *Client) Close() { c.stop() }

// Run keeps the view up to date until ctx is done, and then returns nil. The last view shows nothing as fresh.
// A client runs once.
func (c *Client) Run(ctx context.Context) error {
	if c.running.Swap(true) {
		return errors.New("client: Run was called before: make a new client")
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.keepTime(ctx) })
	for ctx.Err() == nil {
		healthy, err := c.runOnce(ctx)
		if ctx.Err() != nil {
			break
		}
		if healthy {
			c.backoff.reset()
		}
		if c.backoff.failures == 0 {
			c.log.Warn("watch of the load monitor ended, trying again", "monitor", c.target, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(c.backoff.next()):
		}
	}
	wg.Wait()
	c.finish()
	return nil
}

// View returns the newest view: one atomic load. It is never nil; before the first picture it is empty, has no epoch,
// and its link is down.
func (c *Client) View() *View { return c.view.Load() }

// Changed returns a channel that is closed when there is a newer view than the one that View returned at the time of
// this call. To miss nothing, take the channel from the view that was looked at: [View.Changed].
func (c *Client) Changed() <-chan struct{} { return c.View().Changed() }

// Wait returns the first view for which ok is true, the current one included, or ctx's error.
func (c *Client) Wait(ctx context.Context, ok func(*View) bool) (*View, error) {
	for {
		v := c.View()
		if ok(v) {
			return v, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-v.Changed():
		}
	}
}

// publishLocked makes a view of what is held. Waiters are woken unless nothing but the time of hearing moved.
func (c *Client) publishLocked(wake bool) {
	old := c.view.Load()
	v := &View{Link: c.link, index: emptyIndex, clock: c.clock, changed: old.changed}
	if p := c.held; p != nil {
		v.Epoch, v.Version, v.State = p.epoch, p.version, p.state
		v.Summary, v.table, v.index = p.summary, p.table, p.index
	}
	if a := c.ageing; a != nil {
		v.Summary, v.table = a.summary, a.table
	}
	if wake {
		v.changed = make(chan struct{})
	}
	c.view.Store(v)
	if wake {
		close(old.changed)
	}
}

// finish publishes the last view: nobody will age it any more, so nothing in it may look fresh.
func (c *Client) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.link.Up {
		c.link.Up, c.link.Since = false, now
	}
	c.link.Err, c.link.Trouble = ErrStopped, nil
	if c.held != nil {
		if c.ageing == nil {
			c.ageing = newAgeing(c.held, c.clock, "")
		}
		c.ageing.reason = "the client of the load monitor was stopped"
		c.ageing.all()
	}
	c.publishLocked(true)
}
