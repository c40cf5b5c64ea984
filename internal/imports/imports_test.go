package imports

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/loadmonitor/loadmonitor"

// pkg is what go list tells of a package.
type pkg struct {
	ImportPath string
	Standard   bool
	Imports    []string
	CgoFiles   []string
}

// lookAround opens every folder of the module. The go command reads them behind the back of go test, which would
// otherwise show a result from its cache after an import has changed.
var lookAround = sync.OnceValue(func() error {
	return filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".") && d.Name() != "..") {
			return filepath.SkipDir
		}
		return err
	})
})

// goCommand runs the go command in the module's root folder and returns what it printed.
func goCommand(env []string, args ...string) ([]byte, error) {
	if err := lookAround(); err != nil {
		return nil, err
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return out, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, exit.Stderr)
	}
	return out, err
}

// list returns the packages that match, by import path.
func list(t *testing.T, args ...string) map[string]*pkg {
	t.Helper()
	out, err := goCommand([]string{"CGO_ENABLED=1"}, append([]string{"list", "-json=ImportPath,Standard,Imports,CgoFiles"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]*pkg)
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		p := new(pkg)
		switch err := dec.Decode(p); {
		case errors.Is(err, io.EOF):
			return found
		case err != nil:
			t.Fatal(err)
		}
		found[p.ImportPath] = p
	}
}

// standard reports whether an import path is of the standard library: its first element has no dot.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func TestRooms_ImportOnlyWhatThePictureAllows(t *testing.T) {
	for path, p := range list(t, "./...") {
		here, ok := strings.CutPrefix(path, module+"/")
		if !ok {
			t.Errorf("package %s lies outside the rooms: move it into one", path)
			continue
		}
		from := roomOf(here)
		if from == nil {
			t.Errorf("folder %s is in no room: add it to rooms_test.go with what it may import", here)
			continue
		}
		for _, imported := range p.Imports {
			there, ours := strings.CutPrefix(imported, module+"/")
			switch {
			case ours:
				if to := roomOf(there); to != nil && !from.mayImportRoom(to) {
					t.Errorf("%s → %s: room %s may import %s, not %s", here, there, from.path, words(from.rooms), to.path)
				}
			case imported != "C" && !standard(imported) && !from.mayImportLib(imported):
				t.Errorf("%s → %s: room %s may import %s besides the standard library", here, imported, from.path, words(from.libs))
			}
		}
	}
}

func words(list []string) string {
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, ", ")
}

// What the SDKs bring into a router or an engine: gRPC and what that needs, nothing else, and nothing that needs cgo.
func TestSDKs_StayLight(t *testing.T) {
	allowed := []string{
		module + "/load", module + "/gen",
		"google.golang.org/grpc", "google.golang.org/protobuf", "google.golang.org/genproto/googleapis/rpc",
		"golang.org/x/net", "golang.org/x/sys", "golang.org/x/text",
	}
	for _, sdk := range []string{"client", "reporter"} {
		root := module + "/" + sdk
		deps := list(t, "-deps", "./"+sdk)
		for path, p := range deps {
			if path == root || p.Standard || standard(path) {
				continue
			}
			if !slices.ContainsFunc(allowed, func(a string) bool { return within(path, a) }) {
				t.Errorf("%s: an SDK must not bring in %s", arrows(deps, root, path), path)
			}
			if len(p.CgoFiles) > 0 {
				t.Errorf("%s: an SDK must build without cgo", arrows(deps, root, path))
			}
		}
	}
}

func TestSDKs_BuildWithoutCgo(t *testing.T) {
	if _, err := goCommand([]string{"CGO_ENABLED=0"}, "build", "./client", "./reporter"); err != nil {
		t.Error(err)
	}
}

// arrows returns the shortest way of imports from one package to another.
func arrows(deps map[string]*pkg, from, to string) string {
	cameFrom := map[string]string{from: ""}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		if queue[0] == to {
			break
		}
		for _, next := range deps[queue[0]].Imports {
			if _, seen := cameFrom[next]; !seen && deps[next] != nil {
				cameFrom[next] = queue[0]
				queue = append(queue, next)
			}
		}
	}
	var way []string
	for p := to; p != ""; p = cameFrom[p] {
		way = append(way, strings.TrimPrefix(p, module+"/"))
	}
	slices.Reverse(way)
	return strings.Join(way, " → ")
}
