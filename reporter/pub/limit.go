package pub

import (
	"fmt"
	"os"
	"syscall"
)

// filesPerSocket is what a bound PUB socket with one subscriber takes: its mailbox, its listener and the connection.
const filesPerSocket = 3

// checkFiles refuses more sockets than the process may open files for: libzmq would accept no more subscribers without a
// word, or the rest of the process would fail instead.
func checkFiles(sockets int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("pub: read the limit of open files: %w", err)
	}
	// Where the list cannot be read, what is open already counts as nothing.
	open, _ := os.ReadDir("/dev/fd")
	return filesFor(sockets, uint64(len(open)), uint64(limit.Cur))
}

func filesFor(sockets int, open, allowed uint64) error {
	need := open + filesPerSocket*uint64(sockets)
	if need <= allowed {
		return nil
	}
	return fmt.Errorf("pub: %d sockets need %d open files beside the %d that are open, and %d are allowed: raise the limit (ulimit -n %d) or publish fewer ranks: %w",
		sockets, filesPerSocket*sockets, open, allowed, need+need/8, ErrTooManySockets)
}
