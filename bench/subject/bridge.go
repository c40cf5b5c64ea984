package subject

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/loadmonitor/loadmonitor/aggregator"
	"github.com/loadmonitor/loadmonitor/bridge/zmq"
	"github.com/loadmonitor/loadmonitor/load"
)

// bridge is the product's way of load from ZMQ sockets to the snapshot. The endpoints are given, so nothing confirms them.
type bridge struct {
	delays
	bridge *zmq.Bridge
	agg    *aggregator.Aggregator // nil: the bridge alone
}

func newBridge(c Config) (*bridge, error) {
	b := &bridge{}
	sink := zmq.Sink(&dropped{})
	targets := make([]zmq.Target, len(c.Endpoints))
	var workers []*load.Worker
	for i, endpoint := range c.Endpoints {
		host, port, err := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
		if err != nil {
			return nil, fmt.Errorf("endpoint %q: %w", endpoint, err)
		}
		n, err := strconv.Atoi(port)
		if err != nil {
			return nil, fmt.Errorf("endpoint %q: %w", endpoint, err)
		}
		w, rank := i/c.Ranks, i%c.Ranks
		id := strings.TrimPrefix(Address(w), "http://")
		targets[i] = zmq.Target{WorkerID: id, Rank: int32(rank), Host: host, Port: n, Topic: "load", TopicKnown: true, Trusted: true}
		if rank == 0 {
			workers = append(workers, &load.Worker{
				ID: id, URL: Address(w), Origin: id, Role: load.RoleRegular, ExpectedRanks: c.Ranks, Transport: load.TransportZMQ,
			})
		}
	}
	if !c.Alone {
		var err error
		if b.agg, err = aggregator.New(aggregator.Options{}); err != nil {
			return nil, err
		}
		sortByID(workers)
		b.agg.SetWorkers(workers)
		sink = b.agg
	}
	var err error
	if b.bridge, err = zmq.New(zmq.Options{Sink: sink}); err != nil {
		return nil, err
	}
	b.bridge.SetTargets(targets)
	return b, nil
}

// dropped takes what a bridge hands on and does nothing with it.
type dropped struct{ n atomic.Uint64 }

func (d *dropped) ApplyRank(*load.Stream, *load.RankReport) error {
	d.n.Add(1)
	return nil
}
func (*dropped) Release(*load.Stream)              {}
func (*dropped) SetRankNote(string, int32, string) {}

func (b *bridge) run(ctx context.Context, ready func(addr string)) error {
	var publishing sync.WaitGroup
	if b.agg != nil {
		publishing.Go(func() { _ = b.agg.Run(ctx) })
	}
	ready("")
	err := b.bridge.Run(ctx)
	publishing.Wait()
	return err
}

func (b *bridge) count(s *Stats) {
	s.Messages = uint64(metric(b.bridge.Metrics(), "zmq_messages_total"))
	s.Frames = uint64(metric(b.bridge.Metrics(), "zmq_messages_decoded_total"))
	if b.agg != nil {
		s.Versions = b.agg.Current().Snapshot.Version
		s.Refused = uint64(metric(b.agg.Metrics(), "reports_refused_total"))
	}
}
