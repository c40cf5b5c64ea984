package server

import (
	"bytes"
	"errors"
	"sync"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that everything but reports uses by default
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// incoming is one message of a report stream as it was received. A message that cannot be decoded is received as well:
// were its error returned by the codec, gRPC would end the stream itself, with a code that stops the engine's reporting.
type incoming struct {
	maxRanks int // of one report, from Options

	*scratch       // from decode to release, so that a stream that waits holds none
	err      error // why msg is not complete; nil when it is
}

// scratch is the working memory of one report: streams are many, and few of them have one at a moment. protobuf would
// allocate every rank of every report.
type scratch struct {
	msg    modelgatewaypb.LoadReport
	ranks  []*modelgatewaypb.RankLoad // those of msg and more
	head   []byte                     // all of an encoded report but its ranks
	report load.Report                // what is made of msg
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// maxHead bounds what of a large message stays in a scratch, bytes.
const maxHead = 64 << 10

// release gives the working memory back.
func (in *incoming) release() {
	in.msg.Reset()
	if cap(in.head) > maxHead {
		in.head = nil
	}
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
	in.decode(buf.ReadOnlyData())
	return nil
}

func (in *incoming) decode(b []byte) {
	in.scratch = scratches.Get().(*scratch)
	if in.err = in.unmarshal(b, in.maxRanks); in.err == nil {
		return
	}
	if valid, repaired := validText(b); repaired {
		in.err = in.unmarshal(valid, in.maxRanks)
	}
}

// ranksField is the number of LoadReport.ranks.
const ranksField = 7

var errMalformed = errors.New("malformed field")

// unmarshal decodes a LoadReport into msg. A rank takes two bytes on the wire and a hundred in memory, so that one more than
// the bound is decoded, which is enough for the report to be refused.
func (s *scratch) unmarshal(b []byte, maxRanks int) error {
	options := proto.UnmarshalOptions{DiscardUnknown: true}
	s.head = s.head[:0]
	n := 0
	for len(b) > 0 {
		field, wire, size := protowire.ConsumeField(b)
		if size < 0 {
			return errMalformed
		}
		whole := b[:size]
		b = b[size:]
		if field != ranksField || wire != protowire.BytesType { // any other type of this number is an unknown field
			s.head = append(s.head, whole...)
			continue
		}
		if n > maxRanks {
			continue
		}
		if n == len(s.ranks) {
			s.ranks = append(s.ranks, new(modelgatewaypb.RankLoad))
		}
		_, _, tag := protowire.ConsumeTag(whole)
		rank, _ := protowire.ConsumeBytes(whole[tag:])
		if err := options.Unmarshal(rank, s.ranks[n]); err != nil {
			return err
		}
		n++
	}
	if err := options.Unmarshal(s.head, &s.msg); err != nil {
		return err
	}
	s.msg.Ranks = s.ranks[:n]
	return nil
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
