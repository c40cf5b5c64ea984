package registration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync"
)

// Bounds on one /server_info (rule LIFE2). Engines send some tens of kilobytes.
const (
	maxInfoBytes = 4 << 20
	maxInfoText  = 4 << 10 // of a key, a number or a text that is kept, as written
	maxInfoDepth = 64
)

var (
	errNoObject = errors.New("not a JSON object")
	errTooLarge = errors.New("too large")
)

// infoReader walks through one JSON object as it arrives and keeps nothing but what it is asked for, so that an answer of
// any size takes a few kilobytes. What is read over is followed through its texts and brackets and not looked at further.
type infoReader struct {
	r    *bufio.Reader
	left int    // bytes that may still come
	kept []byte // what was read last, where it was to be kept
}

// infoBuffers are the buffers of readers: with thousands of engines a thousand answers come each second. *bufio.Reader.
var infoBuffers = sync.Pool{New: func() any { return bufio.NewReader(nil) }}

func newInfoReader(r io.Reader) *infoReader {
	b := infoBuffers.Get().(*bufio.Reader)
	b.Reset(r)
	return &infoReader{r: b, left: maxInfoBytes, kept: make([]byte, 0, 64)}
}

// release gives the buffer back; the reader must not be used again.
func (in *infoReader) release() {
	in.r.Reset(nil)
	infoBuffers.Put(in.r)
	in.r = nil
}

// read returns the next byte. The end of the text is io.EOF here and errNoObject in everything that needs another byte.
func (in *infoReader) read() (byte, error) {
	if in.left == 0 {
		return 0, errTooLarge
	}
	in.left--
	return in.r.ReadByte()
}

func (in *infoReader) unread() {
	_ = in.r.UnreadByte() // after a read
	in.left++
}

// next returns the next byte that is no white space.
func (in *infoReader) next() (byte, error) {
	for {
		b, err := in.read()
		if err != nil || b != ' ' && b != '\n' && b != '\t' && b != '\r' {
			return b, err
		}
	}
}

func inside(err error) error {
	if err == io.EOF {
		return errNoObject
	}
	return err
}

// expect reads one byte of the grammar.
func (in *infoReader) expect(want byte) error {
	b, err := in.next()
	if err == nil && b != want {
		err = errNoObject
	}
	return inside(err)
}

// object reads the whole text, which must be one object: f is called for each key and must read the value.
func (in *infoReader) object(f func(key string) error) error {
	if err := in.expect('{'); err != nil {
		return err
	}
	if err := in.members(f); err != nil {
		return err
	}
	switch _, err := in.next(); err {
	case io.EOF:
		return nil
	case nil:
		return errNoObject
	default:
		return err
	}
}

// members reads the rest of an object whose brace was read.
func (in *infoReader) members(f func(key string) error) error {
	b, err := in.next()
	if err == nil && b == '}' {
		return nil
	}
	for err == nil {
		if b != '"' {
			return errNoObject
		}
		if err := in.member(f); err != nil {
			return err
		}
		if b, err = in.next(); err != nil {
			break
		}
		switch b {
		case '}':
			return nil
		case ',':
			b, err = in.next()
		default:
			return errNoObject
		}
	}
	return inside(err)
}

// member reads a key, whose opening quote was read, and its value.
func (in *infoReader) member(f func(key string) error) error {
	key, whole, err := in.quoted()
	if err != nil {
		return err
	}
	if err := in.expect(':'); err != nil {
		return err
	}
	if !whole {
		return in.skip()
	}
	return f(key)
}

// block reads the next value, which should be an object: f is called for each key as by object. Otherwise is says what
// the value is, and it is read over.
func (in *infoReader) block(f func(key string) error) (is kind, err error) {
	b, err := in.next()
	if err != nil {
		return otherValue, inside(err)
	}
	if b == '{' {
		return objectValue, in.members(f)
	}
	in.unread()
	return in.value()
}

// skip reads over the next value.
func (in *infoReader) skip() error {
	_, err := in.value()
	return err
}

// kind is what a value is.
type kind uint8

const (
	nullValue kind = iota
	numberValue
	textValue
	objectValue
	otherValue // a list, true or false, or a text that is too long to be kept
)

// value reads the next value. Of a number or a text, in.kept is what it says. An object is read over.
func (in *infoReader) value() (kind, error) {
	b, err := in.next()
	if err != nil {
		return otherValue, inside(err)
	}
	switch b {
	case '"':
		s, whole, err := in.quoted()
		if err != nil || !whole {
			return otherValue, err
		}
		in.kept = append(in.kept[:0], s...)
		return textValue, nil
	case '{':
		return objectValue, in.over('}')
	case '[':
		return otherValue, in.over(']')
	}
	in.unread()
	return in.literal()
}

// literal reads a number, null, true or false.
func (in *infoReader) literal() (kind, error) {
	in.kept = in.kept[:0]
	for {
		b, err := in.read()
		if err != nil {
			return otherValue, inside(err)
		}
		switch b {
		case ',', '}', ']', ' ', '\n', '\t', '\r':
			in.unread()
			if !json.Valid(in.kept) {
				return otherValue, errNoObject
			}
			switch in.kept[0] {
			case 'n':
				return nullValue, nil
			case 't', 'f':
				return otherValue, nil
			}
			return numberValue, nil
		}
		if len(in.kept) == maxInfoText {
			return otherValue, errNoObject
		}
		in.kept = append(in.kept, b)
	}
}

// quoted reads the rest of a text whose opening quote was read. whole is false when it is too long to be kept.
func (in *infoReader) quoted() (s string, whole bool, err error) {
	in.kept = append(in.kept[:0], '"')
	plain := true
	for {
		b, err := in.read()
		if err != nil {
			return "", false, inside(err)
		}
		escaped := byte(0)
		switch {
		case b == '"':
			if plain {
				return string(in.kept[1:]), true, nil
			}
			if json.Unmarshal(append(in.kept, '"'), &s) != nil {
				return "", false, errNoObject
			}
			return s, true, nil
		case b == '\\':
			plain = false
			if escaped, err = in.read(); err != nil {
				return "", false, inside(err)
			}
		case b < ' ' || b >= 0x80:
			plain = false
		}
		if len(in.kept) >= maxInfoText {
			return "", false, in.overText()
		}
		in.kept = append(in.kept, b)
		if b == '\\' {
			in.kept = append(in.kept, escaped)
		}
	}
}

// over reads to the bracket that ends an object or a list whose first bracket was read.
func (in *infoReader) over(end byte) error {
	ends := make([]byte, 1, maxInfoDepth)
	ends[0] = end
	for len(ends) > 0 {
		b, err := in.find(`"{}[]`)
		switch {
		case err != nil:
			return err
		case b == '"':
			if err := in.overText(); err != nil {
				return err
			}
		case b == '{' || b == '[':
			if len(ends) == maxInfoDepth {
				return errNoObject
			}
			ends = append(ends, b+2) // as in ASCII
		case b != ends[len(ends)-1]:
			return errNoObject
		default:
			ends = ends[:len(ends)-1]
		}
	}
	return nil
}

// overText reads the rest of a text.
func (in *infoReader) overText() error {
	for {
		b, err := in.find(`"\`)
		if err != nil || b == '"' {
			return err
		}
		if _, err := in.read(); err != nil {
			return inside(err)
		}
	}
}

// find reads up to the next of the given ASCII characters.
func (in *infoReader) find(chars string) (byte, error) {
	for {
		if in.r.Buffered() == 0 {
			if _, err := in.r.Peek(1); err != nil {
				return 0, inside(err)
			}
		}
		chunk, _ := in.r.Peek(min(in.r.Buffered(), in.left))
		if len(chunk) == 0 {
			return 0, errTooLarge
		}
		i := bytes.IndexAny(chunk, chars)
		n := i + 1
		if i < 0 {
			n = len(chunk)
		}
		found := chunk[n-1]
		_, _ = in.r.Discard(n)
		in.left -= n
		if i >= 0 {
			return found, nil
		}
	}
}
