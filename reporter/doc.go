// Package reporter is the engine's side of the push contract: it streams the load of an engine's DP ranks to every
// monitor that registered at it, for as long as that monitor renews its lease.
//
// An engine makes one [Reporter] per process, mounts [Reporter.Handler] at [Path] and calls [Reporter.Run]:
//
//	rep, err := reporter.New(reporter.Options{Sample: newest, Role: load.RoleDecode})
//	mux.Handle(reporter.Path, rep.Handler())
//	go rep.Run(ctx)
//
// A monitor then posts where it listens; from there on
//
//  1. each target (the monitor's ip and port) has one stream, and belongs to the worker address that registered it
//     first until the lease ends;
//  2. the first report follows the connection at once, then one follows each interval; a period that was missed, because
//     the stream was blocked or the process slept, is skipped and never replayed;
//  3. a renewal moves the next report to one interval from now;
//  4. the end of a lease cancels the call; the codes with which a monitor ends a stream decide what comes next (see
//     stream.go): reconnect with backoff, wait for the next renewal, or end until the target is registered anew;
//  5. sequence numbers come from one counter of the process, which all targets share, so that a monitor sees them rise
//     with holes.
//
// What is reported is the newest sample that the engine has; the reporter never waits for one. It imports no more than
// load, the generated contract, grpc and the standard library, and needs no cgo.
//
// Start reading at reporter.go (who is registered), then target.go (the life of one target) and stream.go (the life of
// one stream).
package reporter
