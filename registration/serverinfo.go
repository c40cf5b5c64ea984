package registration

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/loadmonitor/loadmonitor/load"
)

// facts is what an engine says of itself in /server_info, as far as anybody needs it: everything else in that answer,
// secrets among it, is read over (case N1). Facts compare with ==.
type facts struct {
	served, path string // the model's served name and its path; empty: not told
	mode         load.Role
	strangeMode  bool // a mode was told and it is none that we know; mode is unspecified
	ranks        int  // DP ranks of the engine; 0: not told in a way that makes sense
	load         loadSockets
}

// model is the name under which the engine serves its model; empty: it names none.
func (f *facts) model() string {
	if f.served != "" {
		return f.served
	}
	return f.path
}

// loadSockets is where the engine says that it publishes its load: rank r of count at port base+r.
type loadSockets struct {
	told       bool   // a port is advertised, and nothing is wrong with what is said of all ranks
	wrong      string // why what is advertised is of no use
	host       string // as told
	base       int    // 1 to 65535
	count      int    // at least 1
	topic      string
	topicKnown bool

	kvBase, kvCount int // the engine's KV events ports, which are somebody else's; kvBase 0: not told
}

const maxTopicBytes = 255

// readServerInfo reads the answer of GET /server_info. What is misspelt in it costs what it says and nothing else, by
// these rules (case K9):
//
//   - A number is a JSON number without a fraction, or a string of decimal digits. null is as good as absent.
//   - dp_size of the engine says how many DP ranks there are; absent, below 1 or above maxRanks: that is not known. Nor is
//     it where attn_dp_size names another number of ranks: releases differ in which of the two holds the count.
//   - dp_size of kv_events says how many load sockets there are; absent: the engine's dp_size, and where that is absent
//     too, 1. One that is no number from 1 to maxRanks leaves the engine without load sockets, as does a base port that is
//     no port, a publisher other than zmq, or a host or topic that is no text.
//
// The error is errNoObject, errTooLarge, or that of r.
func readServerInfo(r io.Reader, maxRanks int) (facts, error) {
	in := newInfoReader(r)
	defer in.release()
	var f facts
	var size, attention whole
	var kv kvEvents
	err := in.object(func(key string) error {
		switch key {
		case "dp_size":
			return size.read(in)
		case "attn_dp_size":
			return attention.read(in)
		case "served_model_name":
			return readName(in, &f.served)
		case "model_path":
			return readName(in, &f.path)
		case "disaggregation_mode":
			return f.readMode(in)
		case "kv_events":
			kv = kvEvents{}
			return kv.read(in)
		}
		return in.skip()
	})
	if err != nil {
		return facts{}, err
	}
	contradicted := attention.valid && attention.n > 1 && attention.n != size.n
	if size.valid && size.n >= 1 && size.n <= maxRanks && !contradicted {
		f.ranks = size.n
	}
	f.load = kv.sockets(size, maxRanks)
	return f, nil
}

// readMode takes the text "null" for plain; null is as good as absent.
func (f *facts) readMode(in *infoReader) error {
	var word textField
	if err := word.read(in); err != nil {
		return err
	}
	f.mode, f.strangeMode = load.RoleUnspecified, word.wrong
	switch {
	case word.value == "null":
		f.mode = load.RoleRegular
	case word.value == "prefill":
		f.mode = load.RolePrefill
	case word.value == "decode":
		f.mode = load.RoleDecode
	case word.told:
		f.strangeMode = true
	}
	return nil
}

// kvEvents is the block kv_events as it was written.
type kvEvents struct {
	wrong                  bool // it is no object
	loadBase, kvBase, size whole
	host, topic, publisher textField
}

func (kv *kvEvents) read(in *infoReader) error {
	is, err := in.block(func(key string) error {
		switch key {
		case "load_endpoint_port_base":
			return kv.loadBase.read(in)
		case "endpoint_port_base":
			return kv.kvBase.read(in)
		case "dp_size":
			return kv.size.read(in)
		case "endpoint_host":
			return kv.host.read(in)
		case "load_topic":
			return kv.topic.read(in)
		case "publisher":
			return kv.publisher.read(in)
		}
		return in.skip()
	})
	kv.wrong = is != objectValue && is != nullValue
	return err
}

// sockets makes sense of the block. size is the engine's own dp_size.
func (kv *kvEvents) sockets(size whole, maxRanks int) loadSockets {
	if !kv.size.told {
		kv.size = size
	}
	if !kv.size.told {
		kv.size = whole{told: true, valid: true, n: 1}
	}
	s := loadSockets{host: kv.host.value, base: kv.loadBase.n, count: kv.size.n, topic: kv.topic.value, topicKnown: kv.topic.told}
	if kv.kvBase.valid && kv.kvBase.n > 0 {
		s.kvBase, s.kvCount = kv.kvBase.n, kv.size.n
	}
	switch {
	case kv.wrong:
		s.wrong = "the engine's kv_events is no object"
	case !kv.loadBase.told:
		return loadSockets{}
	case !kv.loadBase.valid:
		s.wrong = "the engine's load_endpoint_port_base is no whole number"
	case s.base < 1 || s.base > 65535:
		s.wrong = fmt.Sprintf("the engine's load_endpoint_port_base is %d: no port", s.base)
	case !kv.size.valid:
		s.wrong = "the engine's dp_size is no whole number"
	case s.count < 1 || s.count > maxRanks:
		s.wrong = fmt.Sprintf("the engine's dp_size is %d: want 1 to %d", s.count, maxRanks)
	case kv.host.wrong:
		s.wrong = "the engine's endpoint_host is no text"
	case kv.topic.wrong:
		s.wrong = "the engine's load_topic is no text"
	case len(s.topic) > maxTopicBytes:
		s.wrong = fmt.Sprintf("the engine's load_topic has %d bytes: at most %d can be subscribed to", len(s.topic), maxTopicBytes)
	case kv.publisher.wrong || kv.publisher.told && kv.publisher.value != "zmq":
		s.wrong = "the engine's kv_events names another publisher than zmq"
	}
	if s.wrong != "" {
		return loadSockets{wrong: s.wrong}
	}
	s.told = true
	return s
}

// whole is a field that should be a whole number.
type whole struct {
	told, valid bool
	n           int // 0 unless valid
}

func (w *whole) read(in *infoReader) error {
	is, err := in.value()
	*w = whole{told: is != nullValue}
	if digits := string(in.kept); is == numberValue || is == textValue && digits != "" && strings.Trim(digits, "0123456789") == "" {
		w.n, w.valid = wholeNumber(digits)
	}
	return err
}

// wholeNumber reads JSON's text of a number. 5600.0 and 56e2 are 5600: JSON knows one kind of number.
func wholeNumber(text string) (int, bool) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > math.MaxInt32 {
		return 0, false
	}
	return int(f), true
}

// textField is a field that should be a text.
type textField struct {
	told, wrong bool
	value       string
}

func (f *textField) read(in *infoReader) error {
	is, err := in.value()
	*f = textField{told: is == textValue, wrong: is != textValue && is != nullValue}
	if f.told {
		f.value = string(in.kept)
	}
	return err
}

// readName reads the name of a model, bounded (rule VAL3). Anything but a text names none.
func readName(in *infoReader, s *string) error {
	var f textField
	err := f.read(in)
	*s = f.value
	if len(*s) > maxNameBytes {
		*s = strings.ToValidUTF8((*s)[:maxNameBytes], "")
	}
	return err
}
