package client_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/loadmonitor/loadmonitor/client"
	"github.com/loadmonitor/loadmonitor/load"
)

// candidate is what a router keeps of a worker itself: the requests that it dispatched there and that have not ended, and
// when it dispatched them.
type candidate struct {
	id         string
	inFlight   int64
	dispatched []time.Time
}

func (c *candidate) since(t time.Time) (n int64) {
	for _, at := range c.dispatched {
		if !at.Before(t) {
			n++
		}
	}
	return n
}

// pick chooses the least loaded candidate. Engine-reported depths are compared only when every candidate has a complete,
// fresh picture; otherwise all are compared by the router's own counter. Mixing the two in one decision would make up
// imbalance.
func pick(v *client.View, candidates []candidate) (best int, basis string) {
	depths := make([]int64, len(candidates))
	basis = "reported"
	for i := range candidates {
		w, ok := v.Worker(candidates[i].id)
		if !ok || w.Freshness != load.Fresh {
			basis = "own counter"
			break
		}
		total, known := w.Aggregate.Int(load.TotalRequests)
		if !known {
			basis = "own counter"
			break
		}
		// Dispatches since the sample cannot be in it yet.
		depths[i] = total + candidates[i].since(w.OldestReceivedAt())
	}
	if basis == "own counter" {
		for i := range candidates {
			depths[i] = candidates[i].inFlight
		}
	}
	for i, d := range depths {
		if d < depths[best] {
			best = i
		}
	}
	return best, basis
}

// A router reads the newest view for each decision: no call, no lock, no allocation.
func Example() {
	c, err := client.Dial("127.0.0.1:50061", client.Options{Filter: client.Filter{Roles: []load.Role{load.RoleDecode}}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	candidates := []candidate{{id: "10.9.0.5:30000", inFlight: 3}, {id: "10.9.0.6:30000", inFlight: 1}}
	best, basis := pick(c.View(), candidates)
	fmt.Println(candidates[best].id, "by", basis)
	// Output: 10.9.0.6:30000 by own counter
}

// A dashboard waits for changes instead of asking again and again. View and channel belong together, so no change is
// missed while a view is looked at.
func ExampleClient_Run() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	c, err := client.New("127.0.0.1:50061", client.Options{WithoutRanks: true, MinInterval: 100 * time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	for ctx.Err() == nil {
		v := c.View()
		if age, heard := v.Link.Age(time.Now()); heard {
			fmt.Println(v.Epoch, v.Version, v.State, age, v.Summary.Fresh, "of", v.Len(), "fresh")
		}
		select {
		case <-v.Changed():
		case <-ctx.Done():
		}
	}
	if err := <-done; err != nil {
		log.Fatal(err)
	}
}
