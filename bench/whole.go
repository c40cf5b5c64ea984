package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/loadmonitor/loadmonitor/bench/drive"
	"github.com/loadmonitor/loadmonitor/bench/subject"
)

// whole is the product's binary in a process of its own, registration and all, with engines that registered at it.
type whole struct {
	cmd     *exec.Cmd
	grpc    string
	engines *drive.Engines
	ended   chan struct{}
	last    string // what it logged last
}

// startWhole starts `loadmonitor serve` and registers engines.
func (b *bench) startWhole(workers, ranks int, args ...string) (_ *whole, err error) {
	args = append([]string{"serve", "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--max-workers", "20000"}, args...)
	w := &whole{cmd: exec.Command(b.binary, args...), ended: make(chan struct{})}
	log, err := w.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the product: %w: build it with make build, or name it with -binary", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.stop())
		}
	}()
	found := make(chan string, 1)
	go w.read(log, found)
	select {
	case w.grpc = <-found:
	case <-w.ended:
		return nil, fmt.Errorf("the product ended at its start: %s", w.last)
	case <-b.ctx.Done():
		return nil, b.ctx.Err()
	}
	conn, err := grpc.NewClient("passthrough:///"+w.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if w.engines, err = drive.ListenEngines(b.ctx, "127.0.0.1", workers, ranks); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(b.ctx, 3*time.Minute)
	defer cancel()
	id := func(i int) string { return fmt.Sprintf("bench-%05d", i) }
	if err := drive.Register(ctx, conn, w.engines.URLs(), ranks, id); err != nil {
		return nil, err
	}
	return w, w.engines.Wait(ctx)
}

// read follows the log until the process ends and tells where gRPC is served.
func (w *whole) read(log io.Reader, found chan<- string) {
	defer close(w.ended)
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		w.last = lines.Text()
		if _, rest, ok := strings.Cut(w.last, "msg=serving grpc="); ok {
			addr, _, _ := strings.Cut(rest, " ")
			select {
			case found <- addr:
			default:
			}
		}
	}
}

func (w *whole) usage() (subject.Stats, error) { return subject.UsageOf(w.cmd.Process.Pid) }

// stop ends the product as an operator does, and the engines.
func (w *whole) stop() error {
	if w.engines != nil {
		w.engines.Close()
	}
	_ = w.cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(20*time.Second, func() { _ = w.cmd.Process.Kill() })
	defer kill.Stop()
	<-w.ended
	if err := w.cmd.Wait(); err != nil {
		return fmt.Errorf("the product ended: %w: %s", err, w.last)
	}
	return nil
}
