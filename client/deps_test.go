package client

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Routers embed this package: it builds without cgo and brings nothing along but the domain's words, the generated
// messages, and what gRPC itself needs.
func TestClient_ImportsNoOtherRoomAndNeedsNoCgo(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}} {{len .CgoFiles}}{{end}}", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	const product = "github.com/loadmonitor/loadmonitor/"
	ours := []string{product + "client", product + "load", product + "gen/loadmonitor/v1"}
	others := []string{"google.golang.org/", "golang.org/x/"}
	for line := range strings.Lines(string(out)) {
		path, cgo, _ := strings.Cut(strings.TrimSpace(line), " ")
		if path == "" {
			continue
		}
		if cgo != "0" {
			t.Errorf("%s needs cgo", path)
		}
		if slices.Contains(ours, path) {
			continue
		}
		if strings.HasPrefix(path, product) || !slices.ContainsFunc(others, func(p string) bool { return strings.HasPrefix(path, p) }) {
			t.Errorf("client depends on %s", path)
		}
	}
}
