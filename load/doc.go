// Package load holds the domain's words as plain Go values: what a worker is, what a report says, what a snapshot shows
// and why a report is refused. Every other room speaks in these types, so this one imports only the standard library
// and holds no behaviour that needs a clock, a lock or a socket.
//
// Start with [Worker] (who exists), [Report] and [RankLoad] (what an engine said), [Snapshot] and [Entry] (what readers
// get), and errors.go (why something was refused).
package load
