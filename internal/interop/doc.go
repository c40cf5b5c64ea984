// Package interop runs peers that share no code with this project against the binary: stock Python with gRPC, and stubs
// made from proto/. engine.py is an engine that pushes its load; receiver.py rebuilds a router's view from the text of the
// Watch contract (docs/protocol.md); watch.py compares such views with GetSnapshot and REST; traces.py reads the golden
// traces. sglang_engine.py runs the load publisher of SGLang releases (sglang_release.py loads it straight from the wheels
// that sglang_fetch has fetched), and sglang_ports.py asks a release for its port rule.
//
// The tests have the build tag interop and need bin/loadmonitor, python3-grpcio and python3-grpc-tools: run make interop.
package interop
