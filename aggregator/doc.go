// Package aggregator keeps what is known of every worker and publishes it as immutable, versioned snapshots.
//
// It owns the state of each registered worker (who feeds it, its last accepted report, when each rank was received), the
// list of what must be published, and the newest [load.Publication].
//
//	Apply ─┐                                          ┌─► Current() *load.Publication
//	       ├─ mu ─ worker state ─ dirty list ─ Run ───┤      Snapshot  immutable
//	SetWorkers, SetNote ┘              (the publisher)└─►    Next      closed when superseded
//
// # Who may call what
//
// Every method may be called from any goroutine. [Aggregator.Run] is the publisher: it runs once; without it reports are
// taken and nothing is published.
//
// # Guarantees
//
//  1. Existence: only SetWorkers creates or removes a worker (ID1). A removed worker is gone in one version and no late
//     report brings it back (ID7).
//  2. Ordering: reports of one source instance are applied in rising sequence; versions rise by one.
//  3. Conflation: a publication shows the newest state of each worker; states in between are skipped.
//  4. Freshness: a rank goes stale at its deadline without any message arriving (FR4), by the monotonic clock at receipt
//     (FR1).
//  5. Economy: a report with unchanged values moves a refresh mark, not the worker (FR6); a publication costs what
//     changed (SNAP3), holds the lock for at most 256 workers at a time, and happens at once when quiet and at most once
//     per publish interval under load (SNAP4).
//  6. Takeover: a newer stream or source instance ends the older stream through [load.Stream.End]; what the older one
//     says after that is refused (ID4, ID5).
//
// Start reading at aggregator.go, then bind.go and apply.go (the way of a report), build.go and publish.go (the way of a
// snapshot), expire.go, workers.go.
package aggregator
