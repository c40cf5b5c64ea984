package subject

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// poller reads an engine's metrics page as those do who have no reports: one GET over a kept connection, and the parser
// that the Prometheus project offers for it.
type poller struct {
	delays
	url      string
	interval time.Duration // 0: none
	polls    atomic.Uint64
}

func newPoller(c Config) *poller {
	p := &poller{url: c.URL}
	if c.Rate > 0 {
		p.interval = time.Duration(float64(time.Second) / c.Rate)
	}
	return p
}

func (p *poller) run(ctx context.Context, ready func(addr string)) error {
	ready("")
	for due := time.Now(); ctx.Err() == nil; due = due.Add(p.interval) {
		if p.interval > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(due)):
			}
		}
		if err := p.poll(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (p *poller) poll(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return fmt.Errorf("read %s: %w", p.url, err)
	}
	if len(families) == 0 {
		return fmt.Errorf("read %s: no metrics", p.url)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	p.polls.Add(1)
	return nil
}

func (p *poller) count(s *Stats) { s.Messages = p.polls.Load() }
