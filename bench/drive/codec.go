package drive

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec for everything that is not raw
	"google.golang.org/grpc/mem"
)

// Raw is a message as bytes. Sent, it goes out as it is; received, only its size is looked at unless Keep is set.
type Raw struct {
	Data mem.BufferSlice // to send
	Keep bool            // materialise what is received into Bytes

	Size  int // of what was received
	Bytes []byte
}

// rawCodec passes Raw messages through and leaves all others to gRPC's own codec.
type rawCodec struct{ encoding.CodecV2 }

// RawCodec returns a codec that sends and receives [Raw] messages without looking into them.
func RawCodec() encoding.CodecV2 { return rawCodec{encoding.GetCodecV2("proto")} }

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if raw, ok := v.(*Raw); ok {
		return raw.Data, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	raw, ok := v.(*Raw)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	raw.Size = data.Len()
	if raw.Keep {
		raw.Bytes = data.Materialize()
	}
	return nil
}
