package subject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
)

// command is one line from the bench process.
type command struct {
	Stats   bool   // answer with Stats
	StartUs int64  // above 0: note delays from now on, against this time
	Profile string // write a CPU profile to this file until the next command with a profile; "-" ends it
}

// hello is the first line of a subject.
type hello struct {
	Addr  string // where it serves; empty: nowhere
	Error string // why it does not
}

// Main runs a subject until its input ends, which begins with its Config.
func Main(in io.Reader, out io.Writer) error {
	input := json.NewDecoder(in)
	var c Config
	if err := input.Decode(&c); err != nil {
		return fmt.Errorf("configuration of the subject: %w", err)
	}
	p, err := newProgram(c)
	if err != nil {
		return err
	}
	answer := json.NewEncoder(out)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ready := make(chan string, 1)
	done := make(chan error, 1)
	go func() { done <- p.run(ctx, func(addr string) { ready <- addr }) }()
	select {
	case err := <-done:
		return errors.Join(err, answer.Encode(hello{Error: fmt.Sprint(err)}))
	case addr := <-ready:
		if err := answer.Encode(hello{Addr: addr}); err != nil {
			return err
		}
	}
	for {
		var cmd command
		if err := input.Decode(&cmd); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("command to the subject: %w", err)
		}
		if err := obey(p, cmd, answer); err != nil {
			return err
		}
	}
	cancel()
	return <-done
}

func obey(p program, cmd command, answer *json.Encoder) error {
	if cmd.StartUs > 0 {
		p.measure(cmd.StartUs)
	}
	switch cmd.Profile {
	case "":
	case "-":
		pprof.StopCPUProfile()
	default:
		f, err := os.Create(cmd.Profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
	}
	s, err := usage()
	if err != nil {
		return err
	}
	if cmd.Stats {
		p.count(&s)
	}
	return answer.Encode(s)
}
