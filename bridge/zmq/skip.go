package zmq

import "io"

// maxKeyBytes holds every word that is compared with something.
const maxKeyBytes = 32

// word reads a string that is compared with names of ours. One that is longer than all of those is skipped and comes back
// as an empty one. The result is valid until the next call.
func (d *Decoder) word() ([]byte, error) {
	code, ok := d.peek()
	if !ok {
		return nil, rejectPayload("", "is cut off")
	}
	if !isString(code) {
		return nil, rejectPayload("", "has something else where a name must be")
	}
	n, err := d.in.DecodeBytesLen()
	if err != nil || n < 0 || n > d.bytes.Len() {
		return nil, rejectPayload("", "is cut off in a name")
	}
	if n > len(d.text) {
		d.advance(n)
		return nil, nil
	}
	word := d.text[:n]
	if err := d.in.ReadFull(word); err != nil {
		return nil, rejectPayload("", "is cut off in a name")
	}
	return word, nil
}

// skip passes over n values, whatever they hold. It neither recurses nor allocates: of all containers that are open only
// the number of values still to come is kept, and as every value takes at least one byte that number is never let above
// the bytes that are there. So the work is bounded by the length of the message and depth costs nothing.
func (d *Decoder) skip(n int) error {
	for pending := n; pending > 0; pending-- {
		if pending > d.bytes.Len() {
			return rejectPayload("", "announces more than it has bytes")
		}
		code, ok := d.peek()
		if !ok {
			return rejectPayload("", "is cut off")
		}
		values, length, err := d.header(code)
		if err != nil {
			return err
		}
		if length > d.bytes.Len() || values > d.bytes.Len() {
			return rejectPayload("", "announces more than it has bytes")
		}
		d.advance(length)
		pending += values
	}
	return nil
}

// header reads the head of a value and returns what follows: how many values for a container, how many bytes else.
func (d *Decoder) header(code byte) (values, length int, err error) {
	switch {
	case isArray(code):
		values, err = d.in.DecodeArrayLen()
	case isMap(code):
		values, err = d.in.DecodeMapLen()
		values *= 2
	case isString(code) || code >= codeBin8 && code <= codeBin32:
		length, err = d.in.DecodeBytesLen()
	case code >= codeExt8 && code <= codeExt32:
		d.advance(1)
		length, err = d.bigEndian(1 << (code - codeExt8))
		length++ // the type
	default:
		length = fixedLength(code)
		if length == 0 {
			err = rejectPayload("", "has a byte that begins no value")
		}
		return 0, length, err
	}
	if err != nil {
		return 0, 0, rejectPayload("", "is cut off")
	}
	return values, length, nil
}

// fixedLength returns how many bytes a value takes whose length its first byte tells; 0: no such value.
func fixedLength(code byte) int {
	if isFixedInt(code) {
		return 1
	}
	switch code {
	case codeNil, codeFalse, codeTrue:
		return 1
	case codeUint8, codeInt8:
		return 2
	case codeUint16, codeInt16, codeFixExt1:
		return 3
	case codeFixExt2:
		return 4
	case codeUint32, codeInt32, codeFloat32:
		return 5
	case codeFixExt4:
		return 6
	case codeUint64, codeInt64, codeFloat64:
		return 9
	case codeFixExt8:
		return 10
	case codeFixExt16:
		return 18
	}
	return 0
}

// bigEndian reads a number of 1, 2 or 4 bytes.
func (d *Decoder) bigEndian(n int) (int, error) {
	v := 0
	for range n {
		b, err := d.bytes.ReadByte()
		if err != nil {
			return 0, err
		}
		v = v<<8 | int(b)
	}
	return v, nil
}

// advance moves over n bytes, which must be there.
func (d *Decoder) advance(n int) {
	_, _ = d.bytes.Seek(int64(n), io.SeekCurrent)
}
