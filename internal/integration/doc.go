// Package integration tests rooms together: reports go in at one end, and what watchers show at the other is compared
// with what the monitor publishes. It has no code but tests; all of them run in memory and on fake time.
//
//   - property_test.go: random histories, after which every view equals GetSnapshot at the same version. More of them,
//     with the race detector, under the build tag cases.
//   - cases_test.go: single cases through a whole server, from a pushed report stream to a watcher.
package integration
