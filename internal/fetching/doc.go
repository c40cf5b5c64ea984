// Package fetching tests the rooms that fetch together, over real sockets: registration asks engines what they are, the
// ZMQ bridge subscribes to them and has them confirmed, the aggregator publishes. Only the resolver is the tests' own. It has
// no code but tests.
//
// Start with cases_test.go; monitor_test.go is the monitor, engine_test.go the engines.
package fetching
