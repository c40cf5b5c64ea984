// Package subject holds the programs that are measured: the product, and beside it the least that any program can do with
// the same libraries, options and messages, the ceilings. Each runs in a process of its own, so that what the load
// generator costs is not counted, and reads its own CPU, memory and counters when it is asked to.
//
//	bench process                                   subject process
//	  Start(Config) ── exec, configuration ────────►  Main ─► listen
//	                ◄── one line: where ────────────
//	  Stats, Delays ── one line each ─────────────►
//	                ◄── one line: Stats ────────────
//	  Stop          ── end of input ──────────────►  exit
//
// The kinds of subjects stand in kinds.go. The product is wired as the binary does it, less registration: workers are
// handed to the aggregator, so that nothing but reports and watchers uses CPU.
package subject
