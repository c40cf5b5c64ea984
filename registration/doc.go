// Package registration decides who exists (rule ID1) and keeps every engine that pushes its load reporting to this
// monitor.
//
// It owns the list of workers and, per worker, the lease that the engine granted:
//
//	configuration ─┐                        ┌─► Sink.SetWorkers   the full set, sorted by id
//	API           ─┼─► merge ─► one pass ───┤
//	Discoverers   ─┘   (reconcile.go)       └─► one lease loop per worker ─► POST /v1/start_reporting
//	                                                   │
//	                                                   └─► Sink.SetNote   why this worker is not registered
//
// Guarantees:
//
//  1. Every source hands over full sets; the result depends on what the sets say, never on the order in which they came
//     (rule ID3). Two entries that say the same of one worker are one worker. Two that disagree about one id or one
//     origin are in conflict: neither is registered, both show the names of all.
//  2. A worker stays registered until a source says otherwise. A lease that cannot be renewed, an engine that hangs or
//     refuses, a token that cannot be read change the worker's [load.Registration] and its note, nothing else. Whether
//     its load may be relied on is the aggregator's judgement by the reports that arrive.
//  3. A removed or changed worker's loop has ended its requests before the next loop of the same id starts. Workers that
//     a change does not touch keep their lease without a gap.
//  4. One engine never delays another: every worker has a goroutine of its own, renewals of living leases, first requests
//     and repeated ones wait for different slots, and every request ends within Options.Timeout.
//  5. Tokens, and whatever an engine says in its answers beyond the status and two numbers, appear in no log line, note,
//     error or metric.
//  6. [Registry.Run] returns after every loop has returned; renewals stop at once. There is no stop call to the engines:
//     their streams end with their leases.
//
// Start with [Registry], then reconcile.go (who exists), lease.go (the loop) and answer.go (what each answer means).
package registration
