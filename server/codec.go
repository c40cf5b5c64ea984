package server

import (
	"sync"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that everything but reports uses by default
	"google.golang.org/grpc/mem"

	"github.com/loadmonitor/loadmonitor/load"
)

// incoming is one message of a report stream as it was received. A message that cannot be decoded is received as well:
// were its error returned by the codec, gRPC would end the stream itself, with a code that stops the engine's reporting.
type incoming struct {
	maxRanks int // of one report, from Options
	names    names

	*scratch       // from decode to release, so that a stream that waits holds none
	err      error // why report is not complete; nil when it is
}

// scratch is the working memory of one report: streams are many, and few of them have one at a moment.
type scratch struct{ report load.Report }

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// release gives the working memory back.
func (in *incoming) release() {
	scratches.Put(in.scratch)
	in.scratch = nil
}

// reportCodec decodes reports, sends responses that are encoded already, and leaves every other message to the codec that
// it wraps.
type reportCodec struct{ encoding.CodecV2 }

func newReportCodec(inner encoding.CodecV2) reportCodec {
	if inner == nil {
		inner = encoding.GetCodecV2("proto")
	}
	return reportCodec{inner}
}

func (c reportCodec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*unreadResponse); ok {
		return r.buffers(), nil
	}
	return c.CodecV2.Marshal(v)
}

func (c reportCodec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*incoming)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	in.scratch = scratches.Get().(*scratch)
	in.err = decode(buf.ReadOnlyData(), &in.report, &in.names, in.maxRanks)
	return nil
}
