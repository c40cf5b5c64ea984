package main

const (
	snapshotPath = "/v1/load_monitor/snapshot"
	watchPath    = "/v1/load_monitor/watch"
	openAPIPath  = "/openapi.json"
)

// ownPaths describes the endpoints of package rest.
func ownPaths() object {
	return object{
		{snapshotPath, object{
			{"description", "GET and HEAD; other methods are answered with 405 and Allow."},
			{"get", object{
				{"tags", []string{"snapshot"}},
				{"operationId", "GetSnapshot"},
				{"description", "The newest snapshot, of any size. Two answers with one ETag are equal byte for byte. Under load an answer " +
					"may be older than the newest version by the monitor's rendering interval (100 ms)."},
				{"parameters", []object{
					header("If-None-Match", "An ETag of an earlier answer, a list of them, or *."),
					header("Accept-Encoding", "gzip compresses the body, which then has an ETag of its own."),
				}},
				{"responses", object{
					{"200", object{
						{"description", "The snapshot."},
						{"headers", snapshotHeaders()},
						{"content", content("application/json", ref("Snapshot"))},
					}},
					{"304", object{
						{"description", "The version that If-None-Match names is the newest."},
						{"headers", snapshotHeaders()},
					}},
					{"default", failure()},
				}},
			}},
		}},
		{watchPath, object{
			{"description", "GET and HEAD; other methods are answered with 405 and Allow."},
			{"get", object{
				{"tags", []string{"snapshot"}},
				{"operationId", "Watch"},
				{"description", "One JSON object a line, without end: the newest snapshot at once, then each change, conflated to the " +
					"newest version, and a heartbeat a second. Silence for more than three seconds means trouble. The body ends when " +
					"the reader takes nothing for too long, and on shutdown after a line with the error."},
				{"parameters", []object{{
					{"name", "min_interval_ms"}, {"in", "query"}, {"required", false},
					{"description", "The shortest time between two snapshots; raised or lowered to the monitor's bounds (100 ms, or more " +
						"while many watch a large fleet; one minute). Heartbeats are not affected. Other parameters are refused."},
					{"schema", object{{"type", "integer"}, {"minimum", 0}, {"maximum", 1<<32 - 1}, {"default", 0}}},
				}}},
				{"responses", object{
					{"200", object{
						{"description", "Lines. The schema is that of one line."},
						{"content", content("application/x-ndjson", ref("WatchLine"))},
					}},
					{"400", describe(failure(), "A parameter is unknown or out of range, or the request has a body.")},
					{"503", describe(failure(), "Too many watches are open (code 8), or the monitor is shutting down (code 14).")},
					{"default", failure()},
				}},
			}},
		}},
		{openAPIPath, object{
			{"get", object{
				{"tags", []string{"snapshot"}},
				{"operationId", "GetOpenAPI"},
				{"description", "This document."},
				{"responses", object{
					{"200", object{
						{"description", "An OpenAPI document."},
						{"content", content("application/json", object{{"type", "object"}})},
					}},
					{"304", object{{"description", "The document that If-None-Match names is the one there is."}}},
					{"default", failure()},
				}},
			}},
		}},
	}
}

func header(name, doc string) object {
	return object{
		{"name", name}, {"in", "header"}, {"required", false}, {"description", doc}, {"schema", object{{"type", "string"}}},
	}
}

func snapshotHeaders() object {
	return object{
		{"ETag", object{
			{"description", "Strong; made of epoch and version, with -gzip for the compressed body."},
			{"schema", object{{"type", "string"}}},
		}},
		{"Snapshot-Age-Ms", object{
			{"description", "Milliseconds from captured_at to this answer, by the monitor's monotonic clock. Add it to the body's ages."},
			{"schema", object{{"type", "integer"}, {"format", "int64"}, {"minimum", 0}}},
		}},
	}
}

func failure() object {
	return object{{"description", "An error."}, {"content", content("application/json", ref("Status"))}}
}

func describe(response object, text string) object { return response.set("description", text) }

func ref(schema string) object { return object{{"$ref", schemaRef + schema}} }
