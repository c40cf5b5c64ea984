// Command loadmonitor is the load plane that LLM inference routers share: engines push their load per DP rank, routers
// watch it, people look at it. See README.md.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	p := &program{args: os.Args[1:], stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, lookupEnv: os.LookupEnv}
	os.Exit(p.run(context.Background()))
}

// program is the whole command apart from the process around it, so that tests run the real thing.
type program struct {
	args      []string
	stdin     io.Reader
	stdout    io.Writer // output for programs and tables
	stderr    io.Writer // progress and log
	lookupEnv func(string) (string, bool)
}

// run carries the command out and returns the exit code: 0, or 1 with one line on stderr that says what was wrong.
func (p *program) run(ctx context.Context) int {
	// The first signal ends ctx, and with it everything, in order. From then on the signals have their default effect
	// again, so that a second one ends the process at once (rule LIFE1).
	ctx, restore := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer restore()
	context.AfterFunc(ctx, restore)

	root := p.newRoot()
	root.SetArgs(p.args)
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		root.PrintErrln("loadmonitor:", err)
		return 1
	}
	return 0
}
