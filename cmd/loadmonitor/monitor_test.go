package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/loadmonitor/loadmonitor/client"
	"github.com/loadmonitor/loadmonitor/internal/proxy"
)

// Rule LIFE1: publication goes on until the last peer has been told or cut, so that what it sees last is true.
func TestMonitor_PublishesUntilThePeersAreGone(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := &settings{}
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	s.register(fs)
	if err := fs.Parse([]string{"--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--heartbeat", "50ms", "--shutdown-grace", "10m"}); err != nil {
		t.Fatal(err)
	}
	m, err := newMonitor(ctx, s, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- m.run(running) }()

	between := proxy.Start(t, m.grpcAddr.String())
	watch := func(addr string) *client.Client {
		t.Helper()
		c, err := client.Dial(addr, client.Options{LinkTimeout: 2 * time.Second}) // a stall is no silence
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		if _, err := c.Wait(ctx, func(v *client.View) bool { return v.Link.Up }); err != nil {
			t.Fatal(err)
		}
		return c
	}
	down := func(c *client.Client) {
		t.Helper()
		if _, err := c.Wait(ctx, func(v *client.View) bool { return !v.Link.Up }); err != nil {
			t.Fatal(err)
		}
	}
	stuck := watch(between.Addr()) // a peer that takes nothing, and so holds the drain up for seconds
	told := watch(m.grpcAddr.String())
	between.Freeze()
	down(stuck) // what was on its way has arrived
	stop()
	down(told)

	for range 3 {
		pub := m.aggregator.Current()
		select {
		case <-pub.Next:
		case err := <-done:
			t.Fatalf("run returned %v although a peer is there", err)
		case <-time.After(10 * time.Second):
			t.Fatal("publication stopped before the peers were gone")
		}
	}
	between.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
