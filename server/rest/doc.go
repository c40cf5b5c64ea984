// Package rest serves the snapshot as JSON over HTTP: one body a request, or one line a version.
//
//	GET /v1/load_monitor/snapshot   the newest version, with ETag, 304 and gzip
//	GET /v1/load_monitor/watch      one JSON object a line: each new version whole, and heartbeats
//	GET /openapi.json               what these and the registry's endpoints send
//
// The JSON has its own writer (render.go), because the proto3 mapping quotes 64-bit integers and leaves out what is
// unknown. One rule holds everywhere in it: what is unknown is null with its key present, an empty text that means "none"
// included; what is zero is 0; an empty list is []. Integers are exact, times are RFC 3339 in UTC with milliseconds, and
// every age is as of captured_at (rule SNAP1), so that one version is one sequence of bytes.
//
// A version is rendered at most once and by one goroutine at a time, whoever asks (renderer.go); while versions come
// faster than Options.MinInterval, all readers share the last rendered one. Readers never wait for each other's network.
//
// Start reading at handler.go, then render.go.
package rest
