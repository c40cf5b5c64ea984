// Package engine simulates a fleet of inference engines on this machine, for demonstrations, load tests and tests that
// want real sockets. Each engine serves what a real one serves to a monitor (/server_info, /v1/start_reporting,
// /v1/loads, /health) and reports through package reporter, or publishes through package pub; the load behind it comes
// from a small queueing model.
//
//	              demand (seed, time): one day and its bursts for the whole fleet
//	                 │
//	┌─ engine ───────▼──────────────────────────────────────────┐
//	│ model: arrivals ─► per rank: waiting ─► prefill ─► decode │
//	│                 │ one collection per cycle                │
//	│              sample, immutable                            │
//	│                 ├─► latest ─► reporter (push streams)     │
//	│                 │          └► GET /v1/loads               │
//	│                 └─► published ─► PUB socket of each rank  │
//	└───────────────────────────────────────────────────────────┘
//
// What can be relied on:
//
//  1. the model's numbers are consistent: every request that arrived is waiting, running, finished or rejected; used
//     tokens stay within the capacity and running requests within their limit;
//  2. the same seed and the same times of collection give the same numbers;
//  3. one collection per cycle feeds every sink of an engine, and a sink that fails costs no other;
//  4. an engine's life can be disturbed from outside (see [Command]): a crash resets every connection and loses all
//     state, a restart is a new source instance, a hang stops the scheduler while HTTP goes on answering;
//  5. an engine has one way to report, pushing or publishing, and advertises load sockets only while they are bound.
//     Published sequences begin at 0 with each restart, on the same ports; a hang, and the silence of a rank, is silence.
//
// Start reading at fleet.go (all of it), engine.go (one engine), model.go and rank.go (the load).
package engine
