package drive

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// Send sends reports until ctx ends: at the fleet's rate, the workers spread evenly over the interval, or as fast as the
// monitor takes them. Streams that ended are left out. It may be called again to go on.
func (f *Fleet) Send(ctx context.Context) {
	if f.opts.Rate == 0 {
		f.saturate(ctx)
		return
	}
	lanes := min(len(f.conns), runtime.GOMAXPROCS(0))
	begin := time.Now()
	var wg sync.WaitGroup
	for lane := range lanes {
		wg.Go(func() { f.pace(ctx, begin, lane, lanes) })
	}
	wg.Wait()
}

// pace sends for every lanes-th worker at its times. A report that was missed because sending was blocked or this process
// did not run is skipped, as engines do.
func (f *Fleet) pace(ctx context.Context, begin time.Time, lane, lanes int) {
	interval := time.Duration(float64(time.Second) / f.opts.Rate)
	step := interval / time.Duration(len(f.workers)) // between two workers' times
	timer := time.NewTimer(0)
	defer timer.Stop()
	late := new(Delays)
	defer func() { f.addLate(late) }()
	noted := begin
	for round := time.Duration(0); ; round++ {
		for i := lane; i < len(f.workers); i += lanes {
			due := begin.Add(round*interval + time.Duration(i)*step)
			now := time.Now()
			if wait := due.Sub(now); wait > 0 {
				timer.Reset(wait)
				select {
				case <-ctx.Done():
					return
				case <-timer.C:
				}
				now = time.Now()
			} else if ctx.Err() != nil {
				return
			}
			behind := now.Sub(due)
			late.Add(behind)
			if behind >= interval { // its next one is due as well
				f.skipped.Add(1)
				continue
			}
			w := f.workers[i]
			select {
			case <-w.over:
			default:
				f.send(w)
			}
			if now.Sub(noted) > time.Second {
				f.addLate(late)
				*late, noted = Delays{}, now
			}
		}
	}
}

func (f *Fleet) addLate(d *Delays) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.late.Merge(d)
}

// saturate sends on every stream as fast as flow control lets it.
func (f *Fleet) saturate(ctx context.Context) {
	var wg sync.WaitGroup
	for _, w := range f.workers {
		wg.Go(func() {
			for ctx.Err() == nil && f.send(w) {
			}
		})
	}
	wg.Wait()
}
