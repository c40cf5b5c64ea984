package watch

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// Watch serves one watcher until it goes, is stuck, or the service shuts down.
//
// SendMsg can block in flow control without end and nothing interrupts it but the end of the handler: grpc-go then marks
// the stream as done, which cancels the stream's context, on which a blocked SendMsg waits as well. So the handler itself
// only looks on while another goroutine sends.
//
// What stays behind a stuck watcher is grpc-go's entry for the stream, with what was queued on it: 64 KiB and one frame
// at most. Its status is queued behind these bytes, so the entry lives until the peer takes them, resets the stream or
// loses the connection. It counts among the streams of its connection: the server must bound those
// (grpc.MaxConcurrentStreams) and find dead connections (keepalive).
func (s *Service) Watch(req *loadmonitorpb.WatchRequest, stream grpc.ServerStreamingServer[loadmonitorpb.WatchResponse]) error {
	v, err := newView(req, s.maxValues)
	if err != nil {
		return refuse(codes.InvalidArgument, "%w", err)
	}
	select {
	case <-s.closed:
		return refuse(codes.Unavailable, "%w", load.ErrShuttingDown)
	default:
	}
	defer s.pace.leave()
	if n := s.pace.join(); n > int64(s.maxWatchers) {
		s.counters.refused.Add(1)
		s.refused.note(s.uptime(), func(before uint64) {
			s.log.Warn("watcher refused: too many", "limit", s.maxWatchers, "peer", peerOf(stream.Context()), "unlogged_before", before)
		})
		return refuse(codes.ResourceExhausted, "%w: at most %d at a time", load.ErrTooManyWatchers, s.maxWatchers)
	}

	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	w := &watcher{
		s:        s,
		stream:   stream,
		view:     v,
		progress: progress{clock: s.uptime},
		turn: turn{
			asked: min(time.Duration(req.GetMinIntervalMs())*time.Millisecond, s.maxInterval),
			beats: s.heartbeat,
		},
	}
	if r := req.GetResume(); r.GetView() == v.name {
		w.epoch, w.held = r.GetEpoch(), r.GetVersion()
	}
	done := make(chan error, 1)
	go func() { done <- w.run(ctx) }()
	return w.guard(ctx, done)
}

// guard waits for the end of run, whose result arrives on done, for the service to shut down or for the watcher to be
// stuck, whatever comes first.
func (w *watcher) guard(ctx context.Context, done <-chan error) error {
	s := w.s
	check := time.NewTimer(s.sendTimeout)
	defer check.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-s.closed:
			return refuse(codes.Unavailable, "%w", load.ErrShuttingDown)
		case <-check.C:
		}
		idle := w.blockedFor()
		if idle >= s.sendTimeout {
			s.counters.stuck.Add(1)
			s.stuck.note(s.uptime(), func(before uint64) {
				s.log.Warn("watcher ended: it took nothing", "for", idle, "peer", peerOf(ctx), "unlogged_before", before)
			})
			return refuse(codes.ResourceExhausted, "%w: nothing for %v", load.ErrWatcherStuck, s.sendTimeout)
		}
		check.Reset(s.sendTimeout - idle)
	}
}

// watcher is one stream. What it holds does not grow with time or with the fleet (rule W3).
type watcher struct {
	// Immutable.
	s      *Service
	stream grpc.ServerStream
	view   *view

	// Read by guard.
	sending  atomic.Int64 // when the call of SendMsg that goes on began, by uptime; 0: none does
	progress progress

	// Used only by run: what the receiver holds after what was sent, and when to send next.
	epoch string
	held  uint64
	turn  turn
}

// blockedFor returns for how long the watcher took nothing of what is being sent; 0 when nothing is.
func (w *watcher) blockedFor() time.Duration {
	since := w.sending.Load()
	if since == 0 {
		return 0
	}
	return w.s.uptime() - time.Duration(max(since, w.progress.at.Load()))
}

// run sends until ctx ends or sending fails. It waits on what it sees in one publication, so nothing falls between a
// look and the wait after it.
func (w *watcher) run(ctx context.Context) error {
	timer := time.NewTimer(w.s.heartbeat)
	defer timer.Stop()
	gate := w.s.relay.join()
	defer w.s.relay.leave()
	if err := w.first(w.s.source.Current()); err != nil {
		return err
	}
	for {
		open := gate.enter()
		p := w.s.source.Current()
		if w.s.pace.interval() == 0 {
			open = p.Next
		} else {
			p = w.s.relay.show(p, &w.turn)
		}
		var err error
		now := time.Now()
		step, until := w.turn.next(now, p.Snapshot.Version, p.Beat)
		switch step {
		case stepIdle:
			err = wait(ctx, open, nil)
		case stepSleep:
			timer.Reset(until.Sub(now))
			err = wait(ctx, nil, timer.C)
		case stepEither:
			timer.Reset(until.Sub(now))
			err = wait(ctx, open, timer.C)
		case stepLook:
			err = w.look(p, now)
		case stepBeat:
			err = w.answer(p, now)
		}
		gate.leave()
		if err != nil {
			return err
		}
	}
}

// wait returns when any of the three happens, with an error if it was the end of ctx.
func wait(ctx context.Context, next <-chan struct{}, timer <-chan time.Time) error {
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-next:
	case <-timer:
	}
	return nil
}

// first sends what the receiver needs to begin with, which is a heartbeat when it resumes where the fleet still is
// (rule W1).
func (w *watcher) first(p *load.Publication) error {
	w.turn.beat, w.turn.beatAt = p.Beat, time.Now()
	base := baseOf(p.Snapshot, w.epoch, w.held)
	if base > 0 && base == p.Snapshot.Version {
		w.turn.lookedAt(time.Now(), base, p.Beat, false, true)
		return w.send(w.s.heartbeatFrames(p.Snapshot, base, w.view))
	}
	return w.bring(p, base, w.s.updateFrames(p.Snapshot, base, w.view), time.Now())
}

// look sends the publication's update. One without content waits until a beat wants a frame anyway: the watcher misses
// nothing but the number of the version.
func (w *watcher) look(p *load.Publication, now time.Time) error {
	base := baseOf(p.Snapshot, w.epoch, w.held)
	b := w.s.updateFrames(p.Snapshot, base, w.view)
	if b.empty() && !w.turn.mustAnswer(p.Beat) {
		w.turn.lookedAt(now, p.Snapshot.Version, p.Beat, false, false)
		return nil
	}
	return w.bring(p, base, b, now)
}

// bring sends what leads from base to the publication: the update, or where it is empty a frame that says so.
func (w *watcher) bring(p *load.Publication, base uint64, b *bundle, now time.Time) error {
	content := !b.empty()
	if !content {
		b = w.s.advanceFrames(p.Snapshot, base, w.view)
	}
	w.epoch, w.held = p.Snapshot.Epoch, p.Snapshot.Version
	w.turn.lookedAt(now, w.held, p.Beat, content, true)
	return w.send(b)
}

// answer sends a heartbeat if nothing was sent since the last beat: an advancing frame when the versions since then were
// found to hold nothing for the view, else one that names the version that the receiver holds.
func (w *watcher) answer(p *load.Publication, now time.Time) error {
	if !w.turn.mustAnswer(p.Beat) {
		w.turn.answered(now, p.Beat, false)
		return nil
	}
	if w.turn.looked == p.Snapshot.Version && w.held != p.Snapshot.Version {
		return w.look(p, now)
	}
	w.turn.answered(now, p.Beat, true)
	return w.send(w.s.heartbeatFrames(p.Snapshot, w.held, w.view))
}

// send hands the frames to grpc. No lock is held.
func (w *watcher) send(b *bundle) error {
	s := w.s
	for _, bytes := range b.frames {
		f := newFrame(bytes, s.source.Now(), &w.progress)
		begun := s.uptime()
		w.sending.Store(max(1, int64(begun)))
		err := w.stream.SendMsg(f)
		w.sending.Store(0)
		if err != nil {
			return err
		}
		s.pace.observe(s.uptime()-begun, f.size())
		s.counters.framesSent.Add(1)
		s.counters.bytesSent.Add(uint64(f.size()))
	}
	return nil
}

func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return "in process"
}
