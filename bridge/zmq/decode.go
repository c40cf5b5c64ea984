package zmq

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/loadmonitor/loadmonitor/load"
)

// MaxMessageBytes bounds one frame. A load message is under 4 KiB; libzmq ends a connection that announces more than this.
const MaxMessageBytes = 64 << 10

// Decoded is one message as told. The rank's number in Load is not set: it is the socket's.
type Decoded struct {
	Sequence int64
	Load     load.RankLoad
	// CapacityOptional as in load.RankReport.
	CapacityOptional bool

	// ToldRank is the rank that the payload claims to be about, if HasToldRank. It is compared and counted, nothing else.
	ToldRank    int64
	HasToldRank bool
	// RepeatedKeys is how many keys of a map came again. The last one wins, as it does for the engine's own library.
	RepeatedKeys int
}

// Decoder turns frames into values. It allocates nothing for a good message and nothing that depends on what a message
// announces. The msgpack library trusts announced lengths and nesting, so it is used for single numbers and headers only,
// and every announced length is compared with the bytes that are there. A Decoder must not be used by two goroutines at a
// time.
type Decoder struct {
	payload []byte
	bytes   bytes.Reader // over payload
	in      *msgpack.Decoder
	text    [maxKeyBytes]byte
}

// NewDecoder returns a decoder.
func NewDecoder() *Decoder {
	d := &Decoder{}
	d.in = msgpack.NewDecoder(&d.bytes)
	return d
}

// Frames decodes one whole message received by a subscriber. topicKnown says that the engine advertised its topic: then
// only exactly that topic is accepted, otherwise an empty one or "load". out is overwritten. The error is a *RejectError.
func (d *Decoder) Frames(frames [][]byte, topic string, topicKnown bool, out *Decoded) error {
	if len(frames) != 3 {
		return &RejectError{Reason: ReasonFrameCount, Detail: "is not three"}
	}
	if !acceptsTopic(frames[0], topic, topicKnown) {
		return &RejectError{Reason: ReasonTopic, Detail: "is another one"}
	}
	if len(frames[1]) != 8 || frames[1][0]&0x80 != 0 {
		return &RejectError{Reason: ReasonSequenceFrame, Detail: "is not a non-negative 8-byte number"}
	}
	if err := d.Payload(frames[2], out); err != nil {
		return err
	}
	out.Sequence = int64(binary.BigEndian.Uint64(frames[1]))
	return nil
}

func acceptsTopic(frame []byte, topic string, known bool) bool {
	if known {
		return string(frame) == topic
	}
	return len(frame) == 0 || string(frame) == defaultTopic
}

// defaultTopic is what an engine uses that advertises no topic, unless it leaves the frame empty.
const defaultTopic = "load"

// Payload decodes the third frame. out is overwritten. The error is a *RejectError.
func (d *Decoder) Payload(payload []byte, out *Decoded) error {
	*out = Decoded{}
	if len(payload) > MaxMessageBytes {
		return rejectPayload("", "is longer than 64 KiB")
	}
	d.payload = payload
	d.bytes.Reset(payload)
	code, ok := d.peek()
	if !ok {
		return rejectPayload("", "is empty")
	}
	var err error
	switch {
	case isArray(code):
		err = d.loadStat(out)
	case isMap(code):
		err = d.loadMap(out)
	default:
		return rejectPayload("", "is neither an array nor a map")
	}
	if err != nil {
		return err
	}
	if d.bytes.Len() != 0 {
		return rejectPayload("", "has bytes after its end")
	}
	return nil
}

// peek returns the first byte of the next value; false: there is none.
func (d *Decoder) peek() (code byte, ok bool) {
	n := d.bytes.Len()
	if n == 0 {
		return 0, false
	}
	return d.payload[len(d.payload)-n], true
}

// count reads a number of things: an integer that is not negative and fits int64, whatever its width on the wire. The
// library would turn nil into 0 and wrap what does not fit.
func (d *Decoder) count(field string) (int64, error) {
	code, ok := d.peek()
	if !ok {
		return 0, rejectPayload(field, "is cut off")
	}
	var (
		n   int64
		err error
	)
	switch {
	case code == codeUint64:
		u, err := d.in.DecodeUint64()
		if err != nil {
			return 0, rejectPayload(field, "is cut off")
		}
		if u > math.MaxInt64 {
			return 0, rejectPayload(field, "is above 2^63-1")
		}
		n = int64(u)
	case isInt(code):
		if n, err = d.in.DecodeInt64(); err != nil {
			return 0, rejectPayload(field, "is cut off")
		}
	default:
		return 0, rejectPayload(field, "is not an integer")
	}
	if n < 0 {
		return 0, rejectPayload(field, "is negative")
	}
	return n, nil
}

// number reads a finite number that may come as a float of either width, as an integer, or as nil: not told.
func (d *Decoder) number(field string) (f float64, told bool, err error) {
	code, ok := d.peek()
	if !ok {
		return 0, false, rejectPayload(field, "is cut off")
	}
	switch {
	case code == codeNil:
		if err = d.in.DecodeNil(); err == nil {
			return 0, false, nil
		}
	case code == codeFloat32 || code == codeFloat64:
		f, err = d.in.DecodeFloat64()
	case code == codeUint64:
		var u uint64
		u, err = d.in.DecodeUint64()
		f = float64(u)
	case isInt(code):
		var n int64
		n, err = d.in.DecodeInt64()
		f = float64(n)
	default:
		return 0, false, rejectPayload(field, "is not a number")
	}
	if err != nil {
		return 0, false, rejectPayload(field, "is cut off")
	}
	if !load.Finite(f) {
		return 0, false, rejectPayload(field, "is not finite")
	}
	return f, true, nil
}

// toldRank reads what the payload calls its rank. It is informational, so what is not an integer is skipped.
func (d *Decoder) toldRank(out *Decoded) error {
	code, ok := d.peek()
	if !ok {
		return rejectPayload("dp_rank", "is cut off")
	}
	if !isInt(code) {
		return d.skip(1)
	}
	n, err := d.in.DecodeInt64()
	if err != nil {
		return rejectPayload("dp_rank", "is cut off")
	}
	out.ToldRank, out.HasToldRank = n, true
	return nil
}
