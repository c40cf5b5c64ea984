package imports

import "strings"

// A room is a folder of the module with everything below it, less the rooms below it.
type room struct {
	path string
	// rooms that it may import, besides itself.
	rooms []string
	// libs are prefixes of other modules' packages that it may import, besides the standard library.
	libs []string
}

const anything = "*"

// rooms is the picture of the project. It leaves out that tests may import more: a test of one room may well need
// another one at the far end of a wire.
var rooms = []room{
	{path: "load"},
	{path: "validator", rooms: []string{"load"}},
	{path: "aggregator", rooms: []string{"load", "validator"}},
	{path: "registration", rooms: []string{"load"}, libs: []string{anything}},
	{path: "bridge", rooms: []string{"load"}, libs: []string{anything}},
	{path: "bridge/zmq", rooms: []string{"load", "bridge"}, libs: []string{anything}},
	{path: "bridge/dial", rooms: []string{"load", "bridge", "gen"}, libs: []string{anything}},
	{path: "bridge/poll", rooms: []string{"load", "bridge"}, libs: []string{anything}},
	{path: "server", rooms: []string{"load", "gen", "gen/gateway"}, libs: []string{anything}},
	{path: "client", rooms: []string{"load", "gen"}, libs: []string{"google.golang.org/grpc", "google.golang.org/protobuf"}},
	{path: "reporter", rooms: []string{"load", "gen"}, libs: []string{"google.golang.org/grpc", "google.golang.org/protobuf"}},
	{path: "reporter/pub", rooms: []string{"load", "gen"}, libs: []string{anything}},
	{path: "gen", libs: []string{"google.golang.org/grpc", "google.golang.org/protobuf"}},
	{path: "gen/gateway", rooms: []string{"gen"}, libs: []string{anything}},

	// These connect rooms with each other.
	{path: "cmd", rooms: []string{anything}, libs: []string{anything}},
	{path: "internal", rooms: []string{anything}, libs: []string{anything}},
	{path: "bench", rooms: []string{anything}, libs: []string{anything}},
	{path: "tools", rooms: []string{anything}, libs: []string{anything}},
}

// roomOf returns the room of a package, given by its path within the module; nil: it is in none.
func roomOf(path string) *room {
	var found *room
	for i := range rooms {
		if r := &rooms[i]; within(path, r.path) && (found == nil || len(r.path) > len(found.path)) {
			found = r
		}
	}
	return found
}

func within(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }

// mayImportRoom and mayImportLib say what the picture allows.

func (r *room) mayImportRoom(other *room) bool {
	if r == other {
		return true
	}
	for _, may := range r.rooms {
		if may == anything || may == other.path {
			return true
		}
	}
	return false
}

func (r *room) mayImportLib(path string) bool {
	for _, may := range r.libs {
		if may == anything || within(path, may) {
			return true
		}
	}
	return false
}
