package aggregator

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// fleet runs an aggregator inside a synctest bubble and speaks to it as engines do.
type fleet struct {
	t *testing.T
	*Aggregator
}

// inBubble runs f with a running aggregator on fake time.
func inBubble(t *testing.T, o Options, f func(t *testing.T, fl *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		f(t, &fleet{t, a})
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// SetWorkers registers workers.
func (f *fleet) SetWorkers(workers []load.Worker) { f.Aggregator.SetWorkers(pointers(workers)) }

// pointers returns copies of the workers.
func pointers(workers []load.Worker) []*load.Worker {
	all := make([]*load.Worker, len(workers))
	for i := range workers {
		all[i] = new(workers[i])
	}
	return all
}

// settle waits until everything due now is published.
func (f *fleet) settle() *load.Snapshot {
	f.t.Helper()
	synctest.Wait()
	time.Sleep(DefaultPublishInterval)
	synctest.Wait()
	return f.Current().Snapshot
}

// worker returns the entry of a worker once everything due is published.
func (f *fleet) worker(id string) *load.Entry {
	f.t.Helper()
	e, _ := f.settle().Workers.Find(id)
	if e == nil {
		f.t.Fatalf("worker %s is not in the snapshot", id)
	}
	return e
}

// want checks freshness and reason's presence.
func (f *fleet) want(id string, want load.Freshness) *load.Entry {
	f.t.Helper()
	e := f.worker(id)
	if e.Freshness != want {
		f.t.Fatalf("worker %s is %s (%s), want %s", id, e.Freshness, e.Reason, want)
	}
	if (e.Reason == "") != (want == load.Fresh) {
		f.t.Errorf("worker %s is %s with reason %q", id, e.Freshness, e.Reason)
	}
	return e
}

// w returns registration's word on the worker with the number.
func w(n int, edit ...func(*load.Worker)) load.Worker {
	origin := fmt.Sprintf("127.0.0.%d:30000", n)
	worker := load.Worker{
		ID: fmt.Sprintf("w%d", n), URL: "http://" + origin, Origin: origin, Role: load.RoleDecode, Models: []string{"m1"}, Zone: "z1",
		Transport: load.TransportPush,
	}
	for _, e := range edit {
		e(&worker)
	}
	return worker
}

// rank returns the sane rank of CASES: running 1, waiting 0, used 100 of 1000.
func rank(n int32, edit ...func(*load.RankLoad)) load.RankLoad {
	r := load.RankLoad{DPRank: n}
	r.SetInt(load.NumRunningReqs, 1)
	r.SetInt(load.NumWaitingReqs, 0)
	r.SetInt(load.NumWaitingUncachedTokens, 0)
	r.SetInt(load.NumUsedTokens, 100)
	r.SetInt(load.NumTotalTokens, 100)
	r.SetInt(load.MaxTotalNumTokens, 1000)
	r.SetInt(load.MaxRunningRequests, 64)
	r.SetFloat(load.TokenUsage, 0.1)
	r.SetFloat(load.GenThroughput, 50)
	for _, e := range edit {
		e(&r)
	}
	return r
}

func running(v int64) func(*load.RankLoad) {
	return func(r *load.RankLoad) { r.SetInt(load.NumRunningReqs, v) }
}

func setInt(s load.IntSignal, v int64) func(*load.RankLoad) {
	return func(r *load.RankLoad) { r.SetInt(s, v) }
}

// report returns a healthy report of worker n.
func report(n int, source string, seq uint64, ranks ...load.RankLoad) *load.Report {
	return &load.Report{
		SourceInstance: source, Sequence: seq, Status: load.StatusHealthy,
		Claim: load.Claim{Address: fmt.Sprintf("http://127.0.0.%d:30000", n), Role: load.RoleDecode, Model: "m1"},
		Ranks: ranks,
	}
}

func push() *load.Stream { return load.NewStream(load.TransportPush) }

// apply fails the test unless the report is taken.
func (f *fleet) apply(st *load.Stream, r *load.Report) {
	f.t.Helper()
	if err := f.Apply(st, r); err != nil {
		f.t.Fatalf("Apply: %v", err)
	}
}

func intOf(t *testing.T, e *load.Entry, i int, s load.IntSignal) int64 {
	t.Helper()
	v, ok := e.Ranks[i].Load.Int(s)
	if !ok {
		t.Fatalf("rank %d has no %s", e.Ranks[i].Load.DPRank, s)
	}
	return v
}
