//go:build linux && amd64 && !race

package subject

import (
	"context"
	"sync"
	"testing"

	"github.com/loadmonitor/loadmonitor/bench/drive"
)

// A report stream holds a stack of 4 KiB: with deeper calls on it than there are now it would be one of 8, which ten thousand
// engines pay for. See grpcStream in package server. Frames of other machines, and under the race detector, have other sizes.
func TestMonitor_ReportStreamsKeepSmallStacks(t *testing.T) {
	const streams, reports = 400, 5
	p := startSubject(t, Config{Kind: Monitor, Workers: streams, Ranks: 8})
	before, err := p.Stats()
	if err != nil {
		t.Fatal(err)
	}
	f, err := drive.Dial(t.Context(), drive.Options{Target: p.Addr, Workers: Addresses(streams), Ranks: 8, Connections: 2, Rate: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, stop := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() { f.Send(ctx) })
	after := await(t, p, func(s Stats) bool { return s.Messages >= reports*streams })
	stop()
	sending.Wait()
	if each := (after.Stacks - before.Stacks) / streams; each < 2<<10 || each > 5<<10 {
		t.Errorf("a report stream holds %d bytes of stack, want 4 KiB and a part of its connection's", each)
	}
}
