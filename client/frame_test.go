package client

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

// The words of test frames.
type (
	frame   = loadmonitorpb.WatchResponse_builder
	worker  = loadmonitorpb.Worker_builder
	rank    = loadmonitorpb.Rank_builder
	workers = []*loadmonitorpb.Worker
)

const (
	fresh = loadmonitorpb.Freshness_FRESHNESS_FRESH
	stale = loadmonitorpb.Freshness_FRESHNESS_STALE
)

// last builds the frame that ends an update; its summary counts all and fresh workers of the resulting view.
func (s scene) last(f frame) *loadmonitorpb.WatchResponse {
	f.Last = true
	f.Summary = summaryOf(s.all, s.fresh)
	return f.Build()
}

// scene is how many workers the view has after an update.
type scene struct{ all, fresh uint32 }

func summaryOf(all, fresh uint32) *loadmonitorpb.Summary {
	state := loadmonitorpb.FleetState_FLEET_STATE_READY
	if all == 0 {
		state = loadmonitorpb.FleetState_FLEET_STATE_NO_WORKERS
	}
	return loadmonitorpb.Summary_builder{
		State: state, Workers: all, Fresh: fresh, Stale: all - fresh, Complete: all > 0 && all == fresh,
	}.Build()
}

// summaryFor counts the workers of a full picture.
func summaryFor(ws ...*loadmonitorpb.Worker) *loadmonitorpb.Summary {
	var n [6]uint32
	for _, w := range ws {
		n[w.GetFreshness()]++
	}
	return loadmonitorpb.Summary_builder{
		State: loadmonitorpb.FleetState_FLEET_STATE_READY, Workers: uint32(len(ws)),
		Fresh: n[1], Stale: n[2], Missing: n[3], Incomplete: n[4], Unreachable: n[5],
		Complete: len(ws) > 0 && int(n[1]) == len(ws),
	}.Build()
}

// aWorker is a fresh worker named for its handle with one rank, which runs as many requests as said and was received at
// the instant.
func aWorker(handle uint32, running int64, receivedUs uint64) *loadmonitorpb.Worker {
	return worker{
		Handle: handle, Id: fmt.Sprintf("w%05d", handle), Url: fmt.Sprintf("http://10.9.%d.%d:30000", handle/256, handle%256),
		Role: loadmonitorpb.Role_ROLE_DECODE, Models: []string{"m1"}, Zone: "z1",
		Transport: loadmonitorpb.Transport_TRANSPORT_PUSH,
		Freshness: fresh, FreshnessWindowMs: 3000, OldestReceivedUs: receivedUs, ExpectedRanks: 1,
		Aggregate: loadmonitorpb.Aggregate_builder{RankCount: 1, NumRunningReqs: &running}.Build(),
		Ranks:     []*loadmonitorpb.Rank{aRank(0, running, receivedUs)},
	}.Build()
}

func aRank(dpRank int32, running int64, receivedUs uint64) *loadmonitorpb.Rank {
	return rank{DpRank: dpRank, Freshness: fresh, ReceivedUs: receivedUs, NumRunningReqs: &running}.Build()
}

// with returns a changed copy.
func with[M proto.Message](m M, change func(M)) M {
	c := proto.CloneOf(m)
	change(c)
	return c
}
