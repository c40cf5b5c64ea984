package zmq

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/loadmonitor/loadmonitor/load"
)

// rank is one target for as long as it stays the same.
type rank struct {
	target Target // immutable
	owner  *owner // immutable

	removed atomic.Bool // SetTargets no longer has it
	place   place       // guarded by places.mu

	// used only by the owner
	index    int     // in owner.ranks
	worker   *worker // nil until added
	conn     *conn   // nil: none is open
	dial     *dial   // that is due or under way; nil: none
	asked    instant // when it was asked for
	connects uint32
	fails    uint8 // dials in a row that failed
	silences uint8 // connections in a row that were given up for silence
	noted    bool  // the sink may show a note
	trouble  bool  // counted in worker.trouble
	missed   bool  // the name did not point to the connection's address when last looked up
}

// conn is one connection attempt: a socket, connected once, and the stream that it feeds. Used only by the owner.
type conn struct {
	rank   *rank
	socket *zmq4.Socket
	handle unsafe.Pointer // the socket for libzmq
	fd     int
	token  uint64
	addr   netip.Addr
	stream *load.Stream

	opened  instant
	heard   instant // newest whole message, good or not
	good    instant // newest message that the sink took
	decoded instant // newest message that was decoded: the rate cap counts from it
	hushed  instant // an edge came without a message: the first since the last message, or the newest before the first message; 0: none
	retry   instant // when to ask again who is there

	trust    trust
	refusals uint8  // times in a row that the engine was not confirmed
	ready    bool   // in owner.ready
	capped   bool   // in owner.capped
	edge     bool   // an edge came while it was in either
	behind   bool   // the last visit found as much as libzmq holds
	sequence int64  // newest seen; -1: none
	skipped  uint64 // messages with our topic and a sequence since the last one that was handed on
	held     *held  // the newest good message, if it waits for something
}

// trust is whether data of a connection counts.
type trust uint8

const (
	untrusted trust = iota
	asking          // Options.Confirm was called, or waits for its turn
	trusted
)

// held is a good message that was not decoded yet.
type held struct {
	payload  []byte
	sequence int64
	received instant
}

// worker is what the ranks of one worker share. Used only by the owner.
type worker struct {
	id      string
	ranks   int
	probing []*conn // connections that the running call of Confirm speaks for
	waiting []*conn // and those that came later
	silent  instant // when Options.Silent was last told
	trouble int     // ranks without data
	logged  instant // when trouble was last logged
	told    bool    // the log says that there is trouble
}

func (r *rank) String() string {
	return fmt.Sprintf("worker %s rank %d", r.target.WorkerID, r.target.Rank)
}
