// Package client is the router's side of the load monitor: it keeps one Watch alive and holds the fleet's load as an
// immutable view that any number of goroutines read without locks, waiting or allocations.
//
//	c, err := client.Dial("127.0.0.1:50061", client.Options{})
//	...
//	defer c.Close()
//	w, ok := c.View().Worker("10.9.0.5:30000")
//
// What it guarantees:
//
//  1. A [View] never changes. [Client.View] is one atomic load; a view may be kept as long as one likes.
//  2. A view shows one version of the monitor's snapshot, whole: the frames of an update are applied together. Within
//     an epoch versions never go back.
//  3. While the link lives, freshness is the monitor's word; nobody recomputes it. When the monitor has been silent for
//     longer than Options.LinkTimeout, each rank goes stale at the moment its freshness window ends by the client's own
//     monotonic clock. That is an event like any other: a new view, and [View.Changed] of the old one is closed.
//  4. When another life of the monitor answers (a new epoch), the old view stays and keeps ageing until the new picture
//     has arrived whole; then one replaces the other. Handles do not carry over.
//  5. A monitor that breaks the watch contract is not believed: the stream is dropped and the next one asks for the full
//     picture.
//  6. Lost streams are resumed from the held version, at most ten tries in 30 s, with jitter.
//  7. What was never told is unknown, never 0: figures are read together with whether they are known.
//
// The package decides nothing: a stale worker is neither full nor idle, and comparing candidates is the caller's
// business. It imports the domain's words (package load), the generated messages and gRPC, and needs no cgo.
//
// Reading order: view.go and worker.go (what readers get), apply.go (from frames to pictures), clock.go and age.go
// (time), client.go and stream.go (the link).
package client
