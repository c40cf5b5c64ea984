package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/loadmonitor/loadmonitor/bench/result"
	"github.com/loadmonitor/loadmonitor/bench/subject"
	"github.com/loadmonitor/loadmonitor/client"
)

// sdkWorkers is the size of the fleet in which a router looks something up.
const sdkWorkers = 1000

// routed calls f with a client that holds a fleet.
func (b *bench) routed(f func(c *client.Client) error) (err error) {
	p, err := b.start(subject.Config{Kind: subject.Monitor, Workers: sdkWorkers, Ranks: 8})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	s, err := b.send(p.Addr, reportLoad{workers: sdkWorkers, ranks: 8, connections: 10, rate: 1})
	if err != nil {
		return err
	}
	c, err := client.Dial("passthrough:///"+p.Addr, client.Options{})
	if err != nil {
		return errors.Join(err, s.end(p))
	}
	_, err = c.Wait(b.ctx, (*client.View).Complete)
	if err := errors.Join(err, s.end(p)); err != nil {
		c.Close()
		return err
	}
	err = f(c)
	c.Close()
	return err
}

// perCall returns how long one of many calls of f takes, in nanoseconds, f doing calls of them.
func (b *bench) perCall(f func(calls int)) float64 {
	const calls = 1 << 16
	f(calls)
	n := 0
	begin := time.Now()
	for time.Since(begin) < b.size.window/4 {
		f(calls)
		n += calls
	}
	return float64(time.Since(begin).Nanoseconds()) / float64(n)
}

// sink keeps the compiler from leaving look-ups out.
//
//lint:ignore U1000 it is written only
var sink uint64

func (b *bench) sdkView(row *result.Row) error {
	row.What, row.Load, row.Unit = "newest view in the SDK", fmt.Sprintf("%d workers", sdkWorkers), "ns"
	err := b.routed(func(c *client.Client) error {
		return b.turns(row, nil, func() (figures, error) {
			return figures{own: b.perCall(func(n int) {
				for range n {
					sink += c.View().Version
				}
			})}, nil
		}, nil)
	})
	row.Target = result.Target{Text: "≤ 10 ns", Value: row.Product.Median, Limit: 10}
	return err
}

func (b *bench) sdkHandle(row *result.Row) error {
	row.What, row.Load, row.Unit = "one worker by handle", fmt.Sprintf("%d workers in mixed order", sdkWorkers), "ns"
	err := b.routed(func(c *client.Client) error {
		v := c.View()
		var handles []uint32
		for w := range v.All() {
			handles = append(handles, w.Handle)
		}
		mix(handles)
		return b.turns(row, nil, func() (figures, error) {
			return figures{own: b.perCall(func(n int) {
				for i, k := 0, 0; i < n; i, k = i+1, k+1 {
					if k == len(handles) {
						k = 0
					}
					w, _ := v.ByHandle(handles[k])
					sink += w.Sequence
				}
			})}, nil
		}, nil)
	})
	row.Target = result.Target{Text: "≤ 10 ns", Value: row.Product.Median, Limit: 10}
	return err
}

func (b *bench) sdkID(row *result.Row) error {
	row.What, row.Load, row.Unit, row.Against = "one worker by id", fmt.Sprintf("%d workers in mixed order", sdkWorkers), "ns", "a Go map of the same ids"
	err := b.routed(func(c *client.Client) error {
		v := c.View()
		bare := make(map[string]*client.Status, v.Len())
		var ids []string
		for w := range v.All() {
			bare[w.ID] = w.Status
			ids = append(ids, strings.Clone(w.ID)) // a router has copies of its own
		}
		mix(ids)
		measure := func(look func(id string) uint64) func() (figures, error) {
			return func() (figures, error) {
				return figures{own: b.perCall(func(n int) {
					for i, k := 0, 0; i < n; i, k = i+1, k+1 {
						if k == len(ids) {
							k = 0
						}
						sink += look(ids[k])
					}
				})}, nil
			}
		}
		return b.turns(row, nil,
			measure(func(id string) uint64 { w, _ := v.Worker(id); return w.Sequence }),
			measure(func(id string) uint64 { return bare[id].Sequence }))
	})
	row.Target = result.Target{Text: "≤ 1.2 ×", Value: row.Ratio.Median, Limit: 1.2}
	return err
}

// mix puts a list into an order that no prefetcher guesses, the same each time.
func mix[T any](list []T) {
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}
