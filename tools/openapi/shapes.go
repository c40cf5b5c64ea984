package main

import (
	"slices"

	"github.com/loadmonitor/loadmonitor/load"
)

// own lists the schemas that are made here, in the order of the document. Definitions of the same name in the Swagger
// file describe the gRPC messages.
var own = []string{"Snapshot", "Summary", "Worker", "Aggregate", "Rank", "WatchLine", "Heartbeat", "WatchEnd", "Status"}

func isOwn(name string) bool { return slices.Contains(own, name) }

// Messages of the Swagger file whose comments are used.
const (
	workerMessage    = "loadmonitorV1Worker"
	aggregateMessage = "v1Aggregate"
	rankMessage      = "v1Rank"
	summaryMessage   = "v1Summary"
	snapshotMessage  = "v1GetSnapshotResponse"
)

// shape builds one schema of an object that always has all of its keys.
type shape struct {
	in         source
	err        error // the first comment that was not found
	properties object
	required   []string
}

func (s *shape) field(name, doc string, schema object) {
	if doc != "" {
		schema = append(object{{"description", doc}}, schema...)
	}
	s.properties = append(s.properties, member{name, schema})
	s.required = append(s.required, name)
}

// from returns the comment of a field of a message.
func (s *shape) from(message, field string) string {
	text, err := s.in.comment(message, field)
	if err != nil && s.err == nil {
		s.err = err
	}
	return text
}

func (s *shape) schema(doc string) object {
	return object{{"type", "object"}, {"description", doc}, {"properties", s.properties}, {"required", s.required}}
}

// Types of values. Integers are plain numbers, exact up to 2^63-1: readers must not go through a double.

func text() object    { return object{{"type", "string"}} }
func integer() object { return object{{"type", "integer"}, {"format", "int64"}, {"minimum", 0}} }
func stamp() object   { return object{{"type", "integer"}, {"format", "int64"}} } // by a clock that is not ours
func number() object  { return object{{"type", "number"}, {"format", "double"}} }
func boolean() object { return object{{"type", "boolean"}} }
func moment() object  { return object{{"type", "string"}, {"format", "date-time"}} }
func constant(v any) object {
	return object{{"const", v}}
}
func list(of object) object { return object{{"type", "array"}, {"items", of}} }
func words(list ...string) object {
	return object{{"type", "string"}, {"enum", list}}
}

// nullable allows null next to the values of a schema.
func nullable(schema object) object {
	for i, m := range schema {
		switch m.key {
		case "type":
			schema[i].value = []any{m.value, "null"}
		case "enum":
			values := []any{}
			for _, w := range m.value.([]string) {
				values = append(values, w)
			}
			schema[i].value = append(values, nil)
		}
	}
	return schema
}

// ownSchemas returns the schemas of snapshot and watch.
func ownSchemas(in source) (object, error) {
	var out object
	for _, name := range own {
		s := &shape{in: in}
		out = append(out, member{name, map[string]func(*shape) object{
			"Snapshot": snapshotShape, "Summary": summaryShape, "Worker": workerShape, "Aggregate": aggregateShape,
			"Rank": rankShape, "WatchLine": watchLineShape, "Heartbeat": heartbeatShape, "WatchEnd": watchEndShape,
			"Status": statusShape,
		}[name](s)})
		if s.err != nil {
			return nil, s.err
		}
	}
	return out, nil
}

func snapshotShape(s *shape) object {
	s.field("enabled", "Monitoring is on.", constant(true))
	s.field("epoch", s.from(snapshotMessage, "epoch"), text())
	s.field("version", s.from(snapshotMessage, "version"), integer())
	s.field("captured_at", "When this version was published, by the monitor's wall clock. Every age is as of this moment.", moment())
	s.field("summary", "", ref("Summary"))
	s.field("workers", "Sorted by worker_id.", list(ref("Worker")))
	return s.schema("One published version of the fleet. Every key is always there: what is unknown is null, what is zero is 0, " +
		"an empty list is []. Integers are plain numbers, exact up to 2^63-1. Times are RFC 3339, UTC, with milliseconds.")
}

func summaryShape(s *shape) object {
	s.field("state", "warming_up: the first discovery pass has not ended, the list may be short; ready: at least one worker is "+
		"registered; no_workers: discovery ended and none is.",
		words(load.FleetWarmingUp.String(), load.FleetReady.String(), load.FleetNoWorkers.String()))
	for _, name := range []string{"workers", "fresh", "stale", "missing", "incomplete", "unreachable"} {
		s.field(name, s.from(summaryMessage, name), integer())
	}
	s.field("complete", s.from(summaryMessage, "complete"), boolean())
	return s.schema("Counts of workers by freshness.")
}

func workerShape(s *shape) object {
	s.field("worker_id", s.from(workerMessage, "id"), text())
	s.field("url", s.from(workerMessage, "url"), text())
	s.field("mode", "What the worker does; plain is prefill and decode in one engine.",
		nullable(words(load.RoleRegular.String(), load.RolePrefill.String(), load.RoleDecode.String())))
	s.field("model_ids", "Registered models; over ZMQ, where none is registered, the engine's own. Empty: models are not compared.", list(text()))
	s.field("zone", "null: none is configured.", nullable(text()))
	s.field("transport", "The way the worker's reports take to the monitor; null: not chosen yet.", nullable(words(
		load.TransportPush.String(), load.TransportZMQ.String(), load.TransportDial.String(), load.TransportPoll.String())))
	s.field("transport_reason", "Why it is that one, e.g. \"zmq: the engine advertises load port 5559\"; null: the worker is in conflict.", nullable(text()))
	s.field("freshness", "Whether the load may be relied on; anything but fresh may not. fresh: every expected rank is present and "+
		"fresh; stale: reported once, but too long ago, or capacity is not known yet; missing: nothing was ever reported; "+
		"incomplete: the ranks reported are not the ranks expected; unreachable: the engine said that it cannot be sampled.",
		words(load.Fresh.String(), load.Stale.String(), load.Missing.String(), load.Incomplete.String(), load.Unreachable.String()))
	s.field("reason", "Why the worker is not fresh, why a report was refused, or why nothing feeds it; null when all is well.", nullable(text()))
	s.field("anomalies", s.from(workerMessage, "anomalies"), list(text()))
	s.field("source_instance_id", "The life of the reporter that the load comes from; null: none yet, or the transport has none.", nullable(text()))
	s.field("sequence_id", "Sequence of the newest accepted report; null: none yet, or the transport has none.", nullable(integer()))
	s.field("report_time_unix_ms", "When the newest accepted report was made, by the engine's clock; null: not told.", nullable(stamp()))
	s.field("last_error", "The engine's own last error, at most 512 bytes.", nullable(text()))
	s.field("received_at", "When the oldest of the fresh ranks was received; where no rank is fresh, the newest receipt there is; "+
		"null: nothing was ever received. captured_at less received_age_ms.", nullable(moment()))
	s.field("received_age_ms", "Age of that receipt at captured_at.", nullable(integer()))
	s.field("expires_at", "When the freshness window of that receipt ends: received_at plus freshness_window_ms. Whether the load may "+
		"be relied on is what freshness says.", nullable(moment()))
	s.field("restarts", s.from(workerMessage, "restarts"), integer())
	s.field("expected_ranks", "Number of ranks that registration expects; null: not known, the reported set is taken at face value.", nullable(integer()))
	s.field("freshness_window_ms", s.from(workerMessage, "freshness_window_ms"), nullable(integer()))
	s.field("aggregate", "", ref("Aggregate"))
	s.field("ranks", "Sorted by dp_rank.", list(ref("Rank")))
	return s.schema(oneLine(in(s, workerMessage)))
}

func aggregateShape(s *shape) object {
	s.field("rank_count", s.from(aggregateMessage, "rank_count"), integer())
	for f := range load.NumIntFigures {
		s.field(f.String(), figureComment(s, f.String()), nullable(integer()))
	}
	for f := range load.NumFloatFigures {
		s.field(f.String(), figureComment(s, f.String()), nullable(number()))
	}
	return s.schema("Figures over the ranks of one worker. A figure is null when an input was never told or a denominator is zero; " +
		"all but rank_count are null unless every expected rank is present. Stale ranks keep their last values: read freshness first.")
}

// figureComment says what a figure is. One that has the name of a signal is that signal's sum.
func figureComment(s *shape, name string) string {
	for f := range load.NumIntSignals {
		if f.String() == name {
			return "Sum over ranks: " + s.from(rankMessage, name)
		}
	}
	for f := range load.NumFloatSignals {
		if f.String() == name {
			return "Sum over ranks: " + s.from(rankMessage, name)
		}
	}
	return s.from(aggregateMessage, name)
}

func rankShape(s *shape) object {
	s.field("dp_rank", s.from(rankMessage, "dp_rank"), object{{"type", "integer"}, {"format", "int32"}, {"minimum", 0}})
	s.field("freshness", "fresh: reported within the freshness window; stale: not, or its sample is old, or capacity is not known yet; "+
		"missing: never reported.", words(load.Fresh.String(), load.Stale.String(), load.Missing.String()))
	s.field("reason", "Why the rank is not fresh; null when it is.", nullable(text()))
	s.field("received_at", "When the newest report of this rank arrived; null: never. captured_at less received_age_ms.", nullable(moment()))
	s.field("received_age_ms", "Age of that receipt at captured_at.", nullable(integer()))
	s.field("sample_age_ms", "How old the sample was when the engine reported it, by the engine's own clock; null: not told.", nullable(integer()))
	s.field("snapshot_time_unix_ms", "When the engine took the sample, by its own clock; null: not told.", nullable(stamp()))
	for f := range load.NumIntSignals {
		s.field(f.String(), s.from(rankMessage, f.String()), nullable(integer()))
	}
	for f := range load.NumFloatSignals {
		s.field(f.String(), s.from(rankMessage, f.String()), nullable(number()))
	}
	return s.schema("The load of one DP rank. A signal that was never told is null, never 0.")
}

func watchLineShape(*shape) object {
	return object{
		{"description", "One line of a watch."},
		{"oneOf", []object{ref("Snapshot"), ref("Heartbeat"), ref("WatchEnd")}},
	}
}

func heartbeatShape(s *shape) object {
	s.field("heartbeat", "", constant(true))
	s.field("epoch", "Of the snapshot last sent.", text())
	s.field("version", "Of the snapshot last sent.", integer())
	return s.schema("The connection and the monitor's publisher live. The snapshot last sent is the newest, unless min_interval_ms holds the next one back.")
}

func watchEndShape(s *shape) object {
	s.field("error", "", ref("Status"))
	return s.schema("The last line of a watch that the monitor ended.")
}

func statusShape(s *shape) object {
	s.field("code", "Of gRPC: 3 invalid argument (400), 5 not found (404), 8 resource exhausted (429, of a watch 503), 9 failed "+
		"precondition (409), 12 unimplemented (405), 14 unavailable (503).", object{{"type", "integer"}, {"format", "int32"}})
	s.field("message", "What is wrong and what to do.", text())
	s.field("details", "Empty.", list(object{{"type", "object"}}))
	return s.schema("An error.")
}

// in returns what the .proto file says of a message.
func in(s *shape, message string) string {
	doc, _ := s.in.Definitions[message]["description"].(string)
	return doc
}
