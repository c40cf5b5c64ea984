// Package registration decides who exists (rule ID1), asks every engine what it is and how it publishes its load, chooses
// one way for the load of each worker to take (rule ID6), and keeps every engine that pushes reporting to this monitor.
//
// It owns the list of workers and, per worker, what its engine says of itself and the lease that it granted:
//
//	configuration ─┐                        ┌─► Sink.SetWorkers    the full set, sorted by id
//	API           ─┼─► merge ─► one pass ───┼─► Dialer.SetTargets  the load sockets of those that are fed over ZMQ
//	Discoverers   ─┘        (reconcile.go)  ├─► one probe per worker ──► GET /server_info
//	                            ▲           │       │
//	                            └───────────┼───────┘ what it says, when that is news
//	                                        └─► one lease per worker that pushes ──► POST /v1/start_reporting
//
// Guarantees:
//
//  1. Every source hands over full sets; the result depends on what the sets say, never on the order in which they came
//     (rule ID3). Two entries that say the same of one worker are one worker. Two that disagree about one id or one
//     origin are in conflict: neither is registered, both show the names of all.
//  2. A worker stays registered until a source says otherwise, and what its engine said stays until it says otherwise. A
//     lease that cannot be renewed, an engine that hangs or refuses, a token that cannot be read change the worker's
//     [load.Registration] and its note, nothing else. Whether its load may be relied on is the aggregator's judgement by
//     the reports that arrive.
//  3. A removed or changed worker's loop has ended its requests before the next loop of the same id starts. Workers that
//     a change does not touch keep their lease without a gap.
//  4. One engine never delays another: every worker has loops of its own, engines that answered last time, first
//     requests and repeated ones wait for different slots, and every request ends within Options.Timeout. A worker has one
//     request of each kind under way at most.
//  5. What is configured wins over what an engine says. Until an engine has said how it publishes its load, or has shown
//     that it will not, a worker for which that matters is listed and not fed. See choose in choice.go for the rules.
//  6. Tokens, and whatever an engine says in its answers beyond the status, the numbers and the names of its model and
//     host, appear in no log line, note, error or metric.
//  7. [Registry.Run] returns after every loop has ended; renewals stop at once. There is no stop call to the engines:
//     their streams end with their leases.
//
// Start with [Registry], then reconcile.go (who exists), choice.go (how each is fed), probe.go and serverinfo.go (what
// engines say), targets.go and confirm.go (the ZMQ side), lease.go (those that push), answer.go (what each answer means)
// and loop.go (how probes and leases wait).
package registration
