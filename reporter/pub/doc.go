// Package pub is the engine's side of the ZMQ contract: it publishes the load of an engine's DP ranks, each rank on a PUB
// socket of its own.
//
//	ports, err := pub.Ports{Load: pub.Auto, KVEvents: "tcp://*:5557", Ranks: 4}.Resolve()
//	p, err := pub.New(pub.Options{MaxSockets: 4})
//	go p.Run(ctx)
//	e, err := p.Bind(ctx, pub.Binding{Range: ports, Topic: "load"})
//	... advertise e.Range(), and then after every step of a rank's scheduler:
//	e.Publish(&sample, pub.Decode)
//
// A [Publisher] serves any number of engines of one process with one goroutine and one libzmq context:
//
//	scheduler loops ── Publish ──► cadence, encode ──► newest payload of each rank ──► Run ──► PUB sockets
//	                               (memory only)       (one slot, overwritten)         (owns them)
//
// What can be relied on:
//
//  1. Publish never waits for a subscriber, a socket or another engine. A payload that was not sent yet is replaced by a
//     newer one of its rank, and libzmq sheds for each subscriber what its pipe of 8 messages cannot take;
//  2. every message has three frames: the topic, a signed 8-byte big-endian sequence that begins at 0 with each Bind and
//     rises by one with each message sent, and the payload;
//  3. when a value is sent is told by cadence.go; nothing is sent for a rank whose scheduler does not step, so that a hung
//     engine falls silent;
//  4. Bind opens all sockets of an engine or none, and what cannot work is refused there, or in [Ports.Resolve] and [New],
//     with the offender and the remedy. Advertise what Range returns, and nothing else;
//  5. trouble with one engine's sockets concerns no other engine, is counted, and is logged once per episode.
//
// The package needs cgo and libzmq 4.2 or newer; package reporter does not.
//
// Start reading at publisher.go (who owns what), then cadence.go and encode.go.
package pub
