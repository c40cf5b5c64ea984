package subject

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// Word is the only argument of a bench binary that is to be a subject.
const Word = "subject"

// stopTimeout is how long a subject may take to end.
const stopTimeout = 10 * time.Second

// Process is a subject in a process of its own, as the bench process sees it. It is used by one goroutine.
type Process struct {
	Addr string // where it serves

	kind  Kind
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *json.Decoder
	input *json.Encoder
}

// Start starts a subject and waits until it serves. What it writes on standard error goes to ours.
func Start(c Config) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{kind: c.Kind, cmd: exec.Command(self, Word)}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out, p.input = json.NewDecoder(bufio.NewReader(out)), json.NewEncoder(p.in)
	if err := startOn(p.cmd, c.CPUs); err != nil {
		return nil, fmt.Errorf("start the %s: %w", c.Kind, err)
	}
	var h hello
	err = p.input.Encode(c)
	if err == nil {
		err = p.out.Decode(&h)
	}
	if err != nil || h.Error != "" {
		return nil, fmt.Errorf("start the %s: %w", c.Kind, errors.Join(err, p.Stop(), said(h.Error)))
	}
	p.Addr = h.Addr
	return p, nil
}

func said(s string) error {
	if s == "" {
		return nil
	}
	return errors.New(s)
}

// Stats reads what the subject has used and done since its start.
func (p *Process) Stats() (Stats, error) { return p.tell(command{Stats: true}) }

// Measure lets the subject note delays from now on, of a fleet that started at start.
func (p *Process) Measure(start time.Time) error {
	_, err := p.tell(command{StartUs: start.UnixMicro()})
	return err
}

// Profile lets the subject write a CPU profile into a file until EndProfile.
func (p *Process) Profile(file string) error {
	_, err := p.tell(command{Profile: file})
	return err
}

// EndProfile completes the profile.
func (p *Process) EndProfile() error {
	_, err := p.tell(command{Profile: "-"})
	return err
}

func (p *Process) tell(c command) (Stats, error) {
	var s Stats
	if err := p.input.Encode(c); err != nil {
		return s, fmt.Errorf("ask the %s: %w", p.kind, err)
	}
	if err := p.out.Decode(&s); err != nil {
		return s, fmt.Errorf("ask the %s: it gave no answer: %w", p.kind, err)
	}
	return s, nil
}

// Stop ends the subject and waits until it is gone; one that does not end by itself is killed.
func (p *Process) Stop() error {
	_ = p.in.Close()
	kill := time.AfterFunc(stopTimeout, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("the %s ended: %w", p.kind, err)
	}
	return nil
}
