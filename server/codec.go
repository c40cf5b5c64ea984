package server

import (
	"bytes"
	"errors"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that everything but reports uses by default
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
)

// incoming is one message of a report stream as it was received. A message that cannot be decoded is received as well:
// were its error returned by the codec, gRPC would end the stream itself, with a code that stops the engine's reporting.
type incoming struct {
	maxRanks int // of one report, from Options

	msg modelgatewaypb.LoadReport
	err error // why msg is not complete; nil when it is
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
	in.decode(buf.ReadOnlyData())
	return nil
}

func (in *incoming) decode(b []byte) {
	if b, in.err = boundRanks(b, in.maxRanks+1); in.err != nil {
		return
	}
	options := proto.UnmarshalOptions{DiscardUnknown: true}
	if in.err = options.Unmarshal(b, &in.msg); in.err == nil {
		return
	}
	if valid, repaired := validText(b); repaired {
		in.msg.Reset()
		in.err = options.Unmarshal(valid, &in.msg)
	}
}

// lastErrorField is the number of LoadReport.last_error.
const lastErrorField = 6

// validText returns an encoded LoadReport whose last_error is valid UTF-8, and whether it was not before (rule VAL3):
// protobuf refuses the whole message otherwise, and a text for people is no reason to lose numbers. Identities are not
// repaired: what is not valid there names nobody.
func validText(b []byte) (valid []byte, repaired bool) {
	for rest := b; len(rest) > 0; {
		field, wire, n := protowire.ConsumeField(rest)
		if n < 0 {
			return nil, false
		}
		whole := rest[:n]
		rest = rest[n:]
		if field == lastErrorField && wire == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(whole)
			if text, _ := protowire.ConsumeBytes(whole[tag:]); !utf8.Valid(text) {
				valid = protowire.AppendTag(valid, field, wire)
				valid = protowire.AppendBytes(valid, bytes.ToValidUTF8(text, []byte("\uFFFD")))
				repaired = true
				continue
			}
		}
		valid = append(valid, whole...)
	}
	return valid, repaired
}

// ranksField is the number of LoadReport.ranks.
const ranksField = 7

var errMalformed = errors.New("malformed field")

// boundRanks returns an encoded LoadReport without the ranks behind the first keep ones. A rank takes two bytes on the
// wire and a hundred in memory, so they are counted before they are decoded; one more than the bound is enough for the
// report to be refused. The result is b itself unless something was left out.
func boundRanks(b []byte, keep int) ([]byte, error) {
	if len(b) <= 2*keep { // the usual case: too short to hold more
		return b, nil
	}
	var kept []byte // nil while everything is kept
	ranks := 0
	for rest := b; len(rest) > 0; {
		field, wire, n := protowire.ConsumeField(rest)
		if n < 0 {
			return nil, errMalformed
		}
		rank := field == ranksField && wire == protowire.BytesType // any other type of this number is an unknown field
		if rank {
			ranks++
		}
		switch {
		case rank && ranks > keep:
			if kept == nil {
				kept = append(make([]byte, 0, len(b)-len(rest)), b[:len(b)-len(rest)]...)
			}
		case kept != nil:
			kept = append(kept, rest[:n]...)
		}
		rest = rest[n:]
	}
	if kept != nil {
		return kept, nil
	}
	return b, nil
}
