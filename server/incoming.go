package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/loadmonitor/loadmonitor/load"
)

// incoming is one report stream: what is read from it, and what is kept of it between two messages.
type incoming struct {
	// immutable
	call       grpcStream
	stream     *load.Stream
	maxMessage int // bytes
	maxRanks   int

	// Used only by the stream's handler, and while that waits by the goroutine that takes a first report.
	header     [5]byte
	troubled   bool // the newest report was refused
	names      names
	untilFirst *time.Timer // nil after the first accepted report
}

// next waits for the next message; the caller frees it. A message has a byte that says whether it is compressed, four for
// its length, and then its bytes. An error is a reason to end the stream.
func (in *incoming) next() (mem.BufferSlice, error) {
	if err := in.call.ReadMessageHeader(in.header[:]); err != nil {
		return nil, readEnd(err)
	}
	if in.header[0] != 0 {
		// gRPC refuses calls that announce a compression, since none is registered.
		return nil, undecodable(errNotPlain)
	}
	n := binary.BigEndian.Uint32(in.header[1:])
	if int64(n) > int64(in.maxMessage) {
		return nil, tooLarge(n, in.maxMessage)
	}
	message, err := in.call.Read(int(n))
	if err != nil {
		return nil, readEnd(err)
	}
	return message, nil
}

// decode fills r with a message and frees it.
func (in *incoming) decode(message mem.BufferSlice, r *load.Report) error {
	b := message.MaterializeToBuffer(mem.DefaultBufferPool())
	message.Free()
	err := decodeReport(b.ReadOnlyData(), r, &in.names, in.maxRanks)
	b.Free()
	return err
}

// readEnd says what an error of reading means.
func readEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // between two messages, or within one
		return errHalfClosed
	}
	switch status.Code(err) {
	case codes.Canceled, codes.Unavailable:
		return errGone
	case codes.DeadlineExceeded:
		return errDeadline
	}
	return fmt.Errorf("read the stream: %w", err)
}

func tooLarge(n uint32, limit int) error {
	return fmt.Errorf("%w: %d bytes, at most %d", errTooLarge, n, limit)
}

var errNotPlain = errors.New("its flag is not 0, as for a message that is compressed or is none")

// scratches are the working memory of reports: streams are many, and few of them have one at a moment.
var scratches = sync.Pool{New: func() any { return new(load.Report) }}
