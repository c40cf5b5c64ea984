// Package watch serves what routers hold: SnapshotService.Watch, a stream that starts with the full picture and goes on
// with what changes, and SnapshotService.GetSnapshot, the same snapshot in pages. It reads immutable snapshots from a
// [Source] and owns nothing but their encoded form.
//
// What a watcher may rely on (the contract stands with the messages in proto/loadmonitor/v1/snapshot.proto):
//
//  1. The first frame comes at once, also for an empty fleet and while the monitor warms up (rule W1).
//  2. After it come updates, each one or more frames of at most 3 MiB that are applied together when the last one has
//     arrived (rules W2, W6). An update always leads to the newest version: a slow watcher skips what lies between
//     (rule W3).
//  3. Within every two beats of the publisher there is a frame. No beat, no frame: silence means trouble (rule W4).
//  4. A watcher that takes nothing for a bounded time is ended (rule W3); memory per watcher does not grow.
//
// How it is made:
//
//	Snapshot ─ delta(snapshot, base, view) ─► update ─ encode ─► frames ─► grpc
//	    │            pure                                  │
//	    │                                                  └─ kept in Snapshot.Memo by (view, base): shared, die with it
//	    └─ WorkerStatus.Memo keeps the worker's wire form: encoded once per change (rule W7)
//
// A watcher waits for the next publication; where there are many, a relay lets them through in groups, paced so that all
// sending stays within half of the CPUs (rule W8).
//
// No history of deltas is kept: each entry says at which version it changed, so one function of one snapshot serves
// conflation, resume and filters alike. This package is the only user of the Memo of snapshots and worker states.
//
// Start reading at service.go, then stream.go and turn.go (one watcher), delta.go (what it must learn), frame.go (as bytes)
// and relay.go (many watchers).
package watch
