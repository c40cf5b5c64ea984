// Package validator holds the rules that decide whether a report is taken and what it means, as pure functions: no
// clock, no lock, no state; now is an argument. The aggregator calls them under its lock, because they decide on the
// state that the same lock guards.
//
// [Shape] looks at a report alone (rules SEQ1 and VAL2), [Identity] compares it with registration (ID2), [Sequence] with
// the reports before (SEQ1); [Normalise] gives values their meaning (FR5); [RankFreshness] and
// [WorkerFreshness] judge what is known at a moment (FR1 to FR3). Every refusal wraps a sentinel of package load.
package validator
