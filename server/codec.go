package server

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that is used by default
	"google.golang.org/grpc/mem"
)

// codec sends responses that are encoded already, and leaves every other message to the codec that it wraps.
type codec struct{ encoding.CodecV2 }

func newCodec(inner encoding.CodecV2) codec {
	if inner == nil {
		inner = encoding.GetCodecV2("proto")
	}
	return codec{inner}
}

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*unreadResponse); ok {
		return r.buffers(), nil
	}
	return c.CodecV2.Marshal(v)
}
