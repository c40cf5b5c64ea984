package server

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// grpcStream is the stream behind [grpc.ServerTransportStreamFromContext]. A report stream is read and ended by it because
// there are as many as engines, and gRPC's documented interface makes each of them cost twice the memory:
//
//   - The frames of RecvMsg alone take a kilobyte of stack. With them a stream that waits needs a stack of 8 KiB, without
//     them one of 4 KiB.
//   - There is no documented way to end a call whose handler is blocked in RecvMsg, so that it takes a second goroutine.
type grpcStream interface {
	// ReadMessageHeader fills header with the next bytes of the stream, waiting for them. It returns [io.EOF] when the peer
	// has closed its side before the first byte, io.ErrUnexpectedEOF within, and a status when the call has ended.
	ReadMessageHeader(header []byte) error
	// Read returns the next n bytes; the caller frees them. Errors are those of ReadMessageHeader.
	Read(n int) (mem.BufferSlice, error)
	// WriteStatus ends the call, and a read that is under way. gRPC calls it itself when the handler returns; the first call
	// counts, and none waits for the peer.
	WriteStatus(*status.Status) error
}

var errNoGRPCStream = errors.New("this version of google.golang.org/grpc has no way to read and end a stream below its " +
	"documented interface (Read, ReadMessageHeader and WriteStatus of its server stream): build with the one that go.mod names")

// grpcStreamOf returns the stream of the call with the context ctx.
func grpcStreamOf(ctx context.Context) (grpcStream, error) {
	s, ok := grpc.ServerTransportStreamFromContext(ctx).(grpcStream)
	if !ok {
		return nil, errNoGRPCStream
	}
	return s, nil
}

// checkGRPCStream makes a call that no network carries, to see whether calls have such a stream.
func checkGRPCStream() error {
	err := errors.New("gRPC served no call")
	g := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		_, err = grpcStreamOf(stream.Context())
		return nil
	}))
	defer g.Stop()
	g.ServeHTTP(&discarded{header: http.Header{}}, &http.Request{
		Method: http.MethodPost, ProtoMajor: 2, URL: &url.URL{Path: "/probe/Probe"},
		Header: http.Header{"Content-Type": {"application/grpc"}}, Body: http.NoBody,
	})
	return err
}

// discarded is an answer that nobody reads.
type discarded struct{ header http.Header }

func (d *discarded) Header() http.Header         { return d.header }
func (d *discarded) Write(b []byte) (int, error) { return len(b), nil }
func (d *discarded) WriteHeader(int)             {}
func (d *discarded) Flush()                      {}
