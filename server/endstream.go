package server

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// statusWriter is the way to end a call with a status while its handler is blocked in RecvMsg, which then returns. gRPC's
// documented interface has no such way; without it a report stream needs a second goroutine, whose stack is a third of what the
// stream costs. It is a method of the stream behind [grpc.ServerTransportStreamFromContext]. gRPC calls it itself beside
// RecvMsg, when SendMsg fails, and again when the handler returns; the first call counts, and none waits for the peer.
type statusWriter interface {
	WriteStatus(*status.Status) error
}

var errNoStatusWriter = errors.New("this version of google.golang.org/grpc has no way to end a stream from outside its handler " +
	"(WriteStatus of its server stream): build with the one that go.mod names")

// statusWriterOf returns the writer of the call with the context ctx.
func statusWriterOf(ctx context.Context) (statusWriter, error) {
	w, ok := grpc.ServerTransportStreamFromContext(ctx).(statusWriter)
	if !ok {
		return nil, errNoStatusWriter
	}
	return w, nil
}

// checkStatusWriter makes a call that no network carries, to see whether calls have a writer.
func checkStatusWriter() error {
	err := errors.New("gRPC served no call")
	g := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		_, err = statusWriterOf(stream.Context())
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
