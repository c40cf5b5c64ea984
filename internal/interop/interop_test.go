//go:build interop

package interop

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	root   = "../.."
	binary = root + "/bin/loadmonitor"
	python = "/usr/bin/python3"

	// hangGuard bounds waits for things that must happen; it is no measure of speed.
	hangGuard = time.Minute
)

// Engines push over both names of the report service, one of which has no .proto, and routers rebuild from the frames
// what GetSnapshot and REST say.
func TestPython_EnginesAndRouters(t *testing.T) {
	stubs := generateStubs(t)
	var engines []string
	for _, service := range []string{"model_gateway.loadmonitor.v1", "router.loadmonitor.v1"} {
		engines = append(engines, start(t, python, "engine.py", stubs, service, "2").line(t))
	}

	monitor := start(t, binary, "serve", "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
		"--worker", engines[0], "--worker", engines[1],
		"--report-interval", "100ms", "--stale-after", "600ms", "--lease", "2s", "--heartbeat", "150ms")
	serving := monitor.logged(t, regexp.MustCompile(`msg=serving grpc=(\S+) http=(\S+)`))

	routers := start(t, python, "watch.py", stubs, serving[1], serving[2], "6")
	var did struct {
		Rest     int
		Seen     []string // words for freshness
		Fresh    []string // URLs of workers that were
		Watchers map[string]struct{ Compared, Resumed, Fulls, Deltas, Heartbeats, Marks, Removals int }
	}
	line := routers.line(t)
	if err := json.Unmarshal([]byte(line), &did); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	t.Log(line)

	monitor.end(t)
	if code := routers.wait(t); code != 0 {
		t.Errorf("the routers exit with %d", code)
	}
	if code := monitor.wait(t); code != 0 {
		t.Errorf("the monitor exits with %d after SIGTERM", code)
	}

	// That it tested something.
	if did.Rest < 5 {
		t.Errorf("REST was compared %d times, want 5", did.Rest)
	}
	for _, word := range []string{"fresh", "missing", "unreachable"} {
		if !strings.Contains(strings.Join(did.Seen, " "), word) {
			t.Errorf("no worker was ever %s, only %v", word, did.Seen)
		}
	}
	slices.Sort(engines)
	if !slices.Equal(did.Fresh, engines) {
		t.Errorf("%v were fresh at some time, want the engines %v", did.Fresh, engines)
	}
	for name, w := range did.Watchers {
		if w.Compared < 3 {
			t.Errorf("%s: compared with GetSnapshot %d times, want 3", name, w.Compared)
		}
		if name == "every" && (w.Deltas == 0 || w.Marks == 0 || w.Removals == 0) {
			t.Errorf("%s: %+v, want deltas, marks and removals", name, w)
		}
		if (name == "resuming" || name == "without ranks") && w.Resumed == 0 {
			t.Errorf("%s: never resumed", name)
		}
	}
	if len(did.Watchers) == 0 {
		t.Error("nobody watched")
	}
}

// The golden traces mean the same to a receiver that shares nothing with the one that recorded them.
func TestPython_GoldenTraces(t *testing.T) {
	reader := start(t, python, "traces.py", generateStubs(t), root+"/testdata/watch")
	t.Logf("%s traces", reader.line(t))
	if code := reader.wait(t); code != 0 {
		t.Errorf("exits with %d", code)
	}
}

// optional is a field with presence. Debian's grpc_tools holds a compiler that is older than these, so it is given what
// they stand for on the wire and in Python alike: a oneof with one member.
var optional = regexp.MustCompile(`(?m)^( *)optional (\S+) (\w+) = (\d+);`)

// generateStubs makes Python modules from proto/ and returns their folder.
func generateStubs(t *testing.T) string {
	t.Helper()
	protos, stubs := t.TempDir(), t.TempDir()
	args := []string{"-m", "grpc_tools.protoc", "-I", protos, "--python_out", stubs, "--grpc_python_out", stubs}
	for _, folder := range []string{"loadmonitor/v1", "model_gateway/loadmonitor/v1"} {
		files, err := filepath.Glob(filepath.Join(root, "proto", folder, "*.proto"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%d .proto files in %s, %v", len(files), folder, err)
		}
		if err := os.MkdirAll(filepath.Join(protos, folder), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			copied := filepath.Join(protos, folder, filepath.Base(file))
			if err := os.WriteFile(copied, optional.ReplaceAll(text, []byte("${1}oneof _$3 { $2 $3 = $4; }")), 0o644); err != nil {
				t.Fatal(err)
			}
			args = append(args, copied)
		}
	}
	if text, err := exec.Command(python, args...).CombinedOutput(); err != nil {
		t.Fatalf("generate stubs: %v\n%s", err, text)
	}
	return stubs
}

// process is a peer or the monitor.
type process struct {
	cmd    *exec.Cmd
	lines  chan string // of stdout
	log    chan string // of stderr
	exited chan struct{}

	mu   sync.Mutex
	text bytes.Buffer // guarded by mu; all of stderr
}

// start runs a command until the test ends at the latest. Its stderr is shown when the test fails.
func start(t *testing.T, command string, args ...string) *process {
	t.Helper()
	p := &process{
		cmd: exec.Command(command, args...), lines: make(chan string, 100), log: make(chan string, 100), exited: make(chan struct{}),
	}
	if _, err := os.Stat(command); err != nil {
		t.Fatalf("%v: run make interop, which builds and installs what this test needs", err)
	}
	stdin, err := p.cmd.StdinPipe() // an engine ends with it
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() { scan(stdout, p.lines, nil) })
	reading.Go(func() {
		scan(stderr, p.log, func(line string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.text.WriteString(line + "\n")
		})
	})
	go func() {
		reading.Wait()
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = p.cmd.Process.Kill()
		<-p.exited
		if t.Failed() {
			t.Logf("%s:\n%s", p.cmd, &p.text)
		}
	})
	return p
}

// scan passes lines on; what nobody waits for is dropped once the channel is full.
func scan(r io.Reader, lines chan<- string, each func(string)) {
	defer close(lines)
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if each != nil {
			each(s.Text())
		}
		select {
		case lines <- s.Text():
		default:
		}
	}
	_, _ = io.Copy(io.Discard, r)
}

// line returns the next line on stdout.
func (p *process) line(t *testing.T) string {
	t.Helper()
	select {
	case line, ok := <-p.lines:
		if ok {
			return line
		}
	case <-time.After(hangGuard):
	}
	t.Fatalf("%s printed nothing", p.cmd)
	return ""
}

// logged waits for a line on stderr that matches, and returns what the groups hold.
func (p *process) logged(t *testing.T, pattern *regexp.Regexp) []string {
	t.Helper()
	guard := time.After(hangGuard)
	for {
		select {
		case line, ok := <-p.log:
			if found := pattern.FindStringSubmatch(line); found != nil {
				return found
			}
			if ok {
				continue
			}
		case <-guard:
		}
		t.Fatalf("%s never logged %s", p.cmd, pattern)
	}
}

// end asks the process to end.
func (p *process) end(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// wait returns the exit code.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(hangGuard):
		t.Fatalf("%s does not end", p.cmd)
		return -1
	}
}
