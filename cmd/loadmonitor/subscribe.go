package main

import (
	"context"
	"log/slog"

	"github.com/loadmonitor/loadmonitor/aggregator"
	"github.com/loadmonitor/loadmonitor/bridge/zmq"
	"github.com/loadmonitor/loadmonitor/registration"
)

// subscriber is the bridge as registration sees it: both have a type of their own for a load socket.
type subscriber struct{ bridge *zmq.Bridge }

func (s subscriber) SetTargets(ends []registration.RankEndpoint) {
	targets := make([]zmq.Target, len(ends))
	for i, e := range ends {
		targets[i] = zmq.Target(e)
	}
	s.bridge.SetTargets(targets)
}

// newBridge returns the bridge to the load sockets that registration names. registry is asked only while the bridge runs.
func newBridge(s *settings, sink *aggregator.Aggregator, registry func() *registration.Registry, log *slog.Logger) (*zmq.Bridge, error) {
	return zmq.New(zmq.Options{
		Sink:    sink,
		Confirm: func(ctx context.Context, id string) error { return registry().Confirm(ctx, id) },
		Silent:  func(id string) { registry().Probe(id) },
		Curve: zmq.Curve{
			ServerKey: s.curveServerKey, PublicKeyFile: s.curvePublicKeyFile, SecretKeyFile: s.curveSecretKeyFile,
		},
		MaxSockets: s.maxZMQSockets,
		Logger:     log,
	})
}
