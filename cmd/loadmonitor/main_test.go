package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// runMain makes the test binary be the program itself, so that tests start, signal and kill real processes.
const runMain = "TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		main()
	}
	os.Exit(m.Run())
}

// invoke runs the program within this process and returns what it wrote.
func invoke(t *testing.T, env map[string]string, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	p := &program{
		args: args, stdin: strings.NewReader(stdin), stdout: &out, stderr: &errOut,
		lookupEnv: func(k string) (string, bool) { v, ok := env[k]; return v, ok },
	}
	code = p.run(t.Context())
	return out.String(), errOut.String(), code
}

// process is the program in a process of its own.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *bufio.Scanner
	stderr *tail
	exited chan struct{}
	err    error
}

// start starts the program; it is killed when the test ends.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return launch(t, exec.Command(os.Args[0], args...))
}

// launch starts the program by a command that leads to it.
func launch(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, stderr: &tail{}, exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), runMain+"=1")
	p.cmd.Stderr = p.stderr
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout = w
	p.stdout = bufio.NewScanner(r)
	p.stdout.Buffer(nil, 1<<20)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close() // the process's own is the only one left, so that its end is ours
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
		r.Close()
		if t.Failed() {
			t.Logf("%s wrote:\n%s", cmd.Args[1:], p.stderr)
		}
	})
	return p
}

// line returns the next line of standard output.
func (p *process) line() string {
	p.t.Helper()
	if !p.stdout.Scan() {
		p.t.Fatalf("standard output ended: %v\n%s", p.stdout.Err(), p.stderr)
	}
	return p.stdout.Text()
}

// wait returns the exit code.
func (p *process) wait(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		p.t.Fatalf("still running after %v\n%s", within, p.stderr)
		return -1
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (w *tail) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf, b...)
	if over := len(w.buf) - 64<<10; over > 0 {
		w.buf = w.buf[over:]
	}
	return len(b), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.buf)
}

// freePorts returns n addresses of loopback that were free a moment ago.
func freePorts(t *testing.T, n int) []string {
	t.Helper()
	addrs := make([]string, n)
	for i := range addrs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addrs[i] = l.Addr().String()
	}
	return addrs
}

// fast are settings that make everything happen five times as quickly as by default.
var fast = []string{"--report-interval", "200ms", "--stale-after", "600ms", "--lease", "3s", "--heartbeat", "200ms"}

// monitorProcess is a serve process with its addresses.
type monitorProcess struct {
	*process
	grpc, http string
}

func serve(t *testing.T, args ...string) *monitorProcess {
	t.Helper()
	args = append([]string{"serve", "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"}, args...)
	m := &monitorProcess{process: start(t, args...)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if at := servingAt.FindStringSubmatch(m.stderr.String()); at != nil {
			m.grpc, m.http = at[1], at[2]
			return m
		}
		m.pause(ctx, "it does not say where it serves")
	}
}

// servingAt finds both addresses in the log.
var servingAt = regexp.MustCompile(`msg=serving grpc=(\S+) http=(\S+)`)

// get returns status and body of a path, once something answers at all.
func (m *monitorProcess) get(ctx context.Context, path string) (int, []byte) {
	m.t.Helper()
	for {
		resp, err := http.Get("http://" + m.http + path)
		if err == nil {
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				m.t.Fatal(err)
			}
			return resp.StatusCode, body
		}
		select {
		case <-m.exited:
			m.t.Fatalf("the monitor has ended\n%s", m.stderr)
		default:
		}
		m.pause(ctx, "HTTP does not answer")
	}
}

// metric returns the value of a figure without labels.
func (m *monitorProcess) metric(ctx context.Context, name string) float64 {
	m.t.Helper()
	_, body := m.get(ctx, "/metrics")
	for line := range strings.Lines(string(body)) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				m.t.Fatal(err)
			}
			return v
		}
	}
	m.t.Fatalf("no figure %s", name)
	return 0
}

func (m *monitorProcess) pause(ctx context.Context, what string) {
	m.t.Helper()
	select {
	case <-time.After(10 * time.Millisecond):
	case <-ctx.Done():
		m.t.Fatalf("%s: %v\n%s", what, ctx.Err(), m.stderr)
	}
}

// until reads the snapshot until it fits.
func (m *monitorProcess) until(ctx context.Context, what string, fits func(snapshotJSON) bool) snapshotJSON {
	m.t.Helper()
	for {
		_, body := m.get(ctx, "/v1/load_monitor/snapshot")
		var s snapshotJSON
		if err := json.Unmarshal(body, &s); err != nil {
			m.t.Fatalf("%v: %s", err, body)
		}
		if fits(s) {
			return s
		}
		m.pause(ctx, what)
	}
}

func allFresh(workers int) func(snapshotJSON) bool {
	return func(s snapshotJSON) bool { return s.Summary.Fresh == workers && s.Summary.Workers == workers }
}

// simulate starts a fleet on fixed ports and returns its URLs once it serves.
func simulate(t *testing.T, workers, ranks, basePort int, seed string) (*process, []string) {
	t.Helper()
	p := start(t, "simulate", "--workers", fmt.Sprint(workers), "--ranks", fmt.Sprint(ranks), "--base-port", fmt.Sprint(basePort), "--seed", seed)
	var urls []string
	for range workers {
		urls = append(urls, p.line())
	}
	return p, urls
}

// portRange returns a first port with n free ones from there on, below the range from which the system gives ports away.
func portRange(t *testing.T, n int) int {
	t.Helper()
	for range 200 {
		first := 20000 + rand.IntN(12000-n)
		if free(first, n) {
			return first
		}
	}
	t.Fatal("no free range of ports")
	return 0
}

func free(first, n int) bool {
	for i := range n {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+i))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}
