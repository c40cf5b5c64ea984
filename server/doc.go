// Package server is the monitor's network side: it takes the reports that engines push, and serves the snapshot, the
// registry, health and metrics to routers and people.
//
// It owns two listeners, one for gRPC and one for HTTP, and everything that is specific to a connection or a request. It
// owns no state about workers: reports go to an [Ingest] in the goroutine that read them, requests about who exists go to
// a [Registry], and readers get what a [Snapshots] publishes.
//
//	engine                         server                                 aggregator
//	  │  Report (two package names)  │
//	  ├─────────────────────────────►│ handler goroutine: read ─ decode ─ Ingest.Apply ─ read …
//	  │◄─────────────────────────────┤ the end: of reading, or from outside (load.Stream.End): takeover, removal, shutdown
//	  │  status, never OK            │
//
// What it guarantees:
//
//   - A report is applied by the goroutine that read it, the first of a stream by one that it waits for; there is no queue.
//     Reports of one stream are applied in order.
//   - Ingest.Release is called exactly once for each stream, after its last Apply has returned.
//   - Everything a peer can grow is bounded; each bound is an option, refuses with a status that says so, and is counted
//     (rule LIFE2).
//   - A stream is never ended with OK while a lease may live; codes are those that engines understand (errors.go).
//   - Run returns after every goroutine, connection and handler of the server has ended (rule LIFE1).
//
// Start with [Options] and [Server.Run]; report.go, incoming.go and decode.go are the hot path, errors.go the table of codes.
//
// The services of the subfolders, watch and rest, are handed in: this package does not depend on them.
package server
