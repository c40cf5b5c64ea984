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
	message    mem.BufferSlice // from next to decode
	names      names
	untilFirst *time.Timer // nil after the first accepted report
	troubled   bool        // the newest report was refused
}

// next waits for the next message. A message has a byte that says whether it is compressed, four for its length, and then
// its bytes. An error is a reason to end the stream.
func (in *incoming) next() error {
	if err := in.call.ReadMessageHeader(in.header[:]); err != nil {
		return readEnd(err)
	}
	if in.header[0] != 0 {
		// gRPC refuses calls that announce a compression, since none is registered.
		return undecodable(errCompressed)
	}
	n := binary.BigEndian.Uint32(in.header[1:])
	if int64(n) > int64(in.maxMessage) {
		return tooLarge(n, in.maxMessage)
	}
	var err error
	if in.message, err = in.call.Read(int(n)); err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return readEnd(err)
	}
	return nil
}

// decode fills r with the message.
func (in *incoming) decode(r *load.Report) error {
	b := in.message.MaterializeToBuffer(mem.DefaultBufferPool())
	in.message.Free()
	in.message = nil
	err := decode(b.ReadOnlyData(), r, &in.names, in.maxRanks)
	b.Free()
	return err
}

// readEnd says what an error of reading means.
func readEnd(err error) error {
	if errors.Is(err, io.EOF) {
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

var errCompressed = errors.New("it is compressed")

// scratches are the working memory of reports: streams are many, and few of them have one at a moment.
var scratches = sync.Pool{New: func() any { return new(load.Report) }}
