package zmq

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// A connected socket holds the descriptor of its mailbox and that of its connection.
	filesPerSocket = 2
	// What listeners, watchers, probes and everything else in the process may need is left to them.
	maxReserve = 1024
	// At most this many dials of one class are under way; few descriptors allow fewer.
	maxDials = 256
)

// limits is what the open-file limit of the process leaves to the bridge.
type limits struct {
	files   int // the open-file limit
	reserve int
	dials   int // under way at a time, per class
	sockets int
}

// limitsOf divides an open-file limit. wanted, if above 0, is the most sockets that are allowed whatever the limit says.
func limitsOf(files, wanted int) limits {
	l := limits{files: files, reserve: min(files/2, maxReserve), dials: min(max(files/32, 4), maxDials)}
	l.sockets = max((files-l.reserve-int(numClasses)*l.dials)/filesPerSocket, 1)
	if wanted > 0 {
		l.sockets = min(l.sockets, wanted)
	}
	return l
}

// needed is the open-file limit with which n sockets fit.
func (l limits) needed(n int) int {
	return n*filesPerSocket + maxReserve + int(numClasses)*maxDials
}

// shortfall is the note of ranks that get no socket.
func (l limits) shortfall(targets int) string {
	return fmt.Sprintf("too many open files: %d ranks need a socket and the limit of %d open files leaves %d: raise it (ulimit -n, LimitNOFILE) to %d",
		targets, l.files, l.sockets, l.needed(targets))
}

func openFileLimit() (int, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, fmt.Errorf("open-file limit: %w", err)
	}
	return int(min(r.Cur, 1<<22)), nil
}
