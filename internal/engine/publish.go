package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/reporter/pub"
)

// stepTime is about what a scheduler step takes. A collection stands for the steps since the one before.
const stepTime = 20 * time.Millisecond

// bind opens the load sockets of a life, on the ports of the life before.
func (e *engine) bind(ctx context.Context) (*pub.Engine, error) {
	base := e.loadPort
	if base == 0 {
		base = e.opts.loadPort(e.index)
	}
	sockets, err := e.publisher.Bind(ctx, pub.Binding{
		Range: pub.Range{Host: e.opts.Host, Base: base, Ranks: e.opts.Ranks},
		Topic: e.voice.topic,
		Form:  e.voice.form,
		Every: max(1, int(pub.DefaultEvery*stepTime/e.opts.Cycle)),
	})
	if err != nil {
		return nil, fmt.Errorf("worker %d: %w", e.index, err)
	}
	e.loadPort = sockets.Range().Base
	return sockets, nil
}

// advertised returns what /server_info says of the load sockets, nil when there are none.
func (e *engine) advertised() *kvEvents {
	e.mu.Lock()
	sockets := e.sockets
	e.mu.Unlock()
	if sockets == nil {
		return nil
	}
	r := sockets.Range()
	return &kvEvents{Publisher: "zmq", EndpointHost: r.Host, DPSize: r.Ranks, LoadEndpointPortBase: r.Base, LoadTopic: e.voice.topic}
}

// published is the sink that publishes the collections of one life.
type published struct {
	engine *pub.Engine
	last   []load.RankLoad
}

// publish offers what every rank's scheduler did since the last collection. A rank whose sample did not renew took no
// step, so nothing is said of it.
func (p *published) publish(s *sample) error {
	var errs []error
	for i := range s.ranks {
		var before load.RankLoad
		if p.last != nil {
			before = p.last[i]
		}
		now := &s.ranks[i]
		if now.SnapshotTimeUnixMs == before.SnapshotTimeUnixMs {
			continue
		}
		err := p.engine.Publish(now, stepOf(&before, now))
		if err != nil && !errors.Is(err, pub.ErrStopped) { // the fleet ends: no trouble
			errs = append(errs, err)
		}
	}
	p.last = s.ranks
	return errors.Join(errs...)
}

// stepOf tells what a scheduler did last from two samples of its rank.
func stepOf(before, now *load.RankLoad) pub.Step {
	running, _ := now.Int(load.NumRunningReqs)
	waiting, _ := now.Int(load.NumWaitingReqs)
	computed, _ := now.Int(load.TotalPrefillUncachedTokens)
	computedBefore, _ := before.Int(load.TotalPrefillUncachedTokens)
	switch {
	case running == 0 && waiting == 0:
		return pub.Idle
	case running == 0:
		return pub.Stalled
	case computed > computedBefore:
		return pub.Prefill
	}
	return pub.Decode
}
