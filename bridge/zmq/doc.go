// Package zmq fetches load over ZeroMQ: one SUB socket for each DP rank of each worker whose engine publishes there, and
// the decoders of what engines send. Linux only, with cgo and libzmq.
//
// A message takes one way. An owner, one of a few goroutines, holds its share of the sockets and waits for edges on all of
// them at once; it reads what the socket has, keeps the newest message, decodes it and hands it to the [Sink]:
//
//	SetTargets ──► owner ◄── edges ── sockets (libzmq) ◄── publishers
//	                │  ▲
//	          dial  ▼  │ address        drain ─► newest ─► Decoder ─► Sink.ApplyRank
//	               dialer ── resolve, greet            (only once the engine was confirmed)
//
// What it guarantees:
//
//  1. The endpoint is the identity. What a payload says of itself is compared and counted, nothing else (rule ID2).
//  2. Every connection is a new [load.Stream], and nothing that arrives on it counts until Options.Confirm has vouched for
//     the engine behind the address after the connection delivered its first message.
//  3. Newest wins. Whatever a socket has is read, counted and skipped to the newest good message; a flood is capped before
//     it is decoded, and its last message is still delivered.
//  4. libzmq never reconnects and never resolves a name: after silence or failure the rank is dialled anew, with backoff,
//     its name looked up again, in goroutines that hold up no socket.
//  5. No rank waits for another: not for a slow name, a slow probe, a black hole, a flood or a hostile peer.
//  6. Threads do not grow with sockets, and neither does the work of waiting.
//
// Which files to read first: bridge.go (what one may call), owner.go (the loop), visit.go (a message's way), watch.go (how
// trouble is noticed), dialer.go (how a rank is dialled again), decode.go (what a message says).
package zmq
