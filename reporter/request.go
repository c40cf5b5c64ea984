package reporter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// parseStartRequest reads the body of a registration. Every key must be there once, spelt exactly, and hold a value of
// its own type: null, a number in quotes, a fraction and an unknown key are refused. WorkerAddr is left to the caller.
// The error wraps ErrInvalid and names the key.
func parseStartRequest(body []byte) (StartRequest, error) {
	values, err := parseObject(body)
	if err != nil {
		return StartRequest{}, err
	}
	fields := fieldReader{values: values}
	ip := fields.ip("ip")
	port := fields.integer("port", 1, 65535)
	interval := fields.integer("report_interval_ms", 1, MaxInterval.Milliseconds())
	lease := fields.integer("lease_ttl_ms", 1, MaxLease.Milliseconds())
	if err := fields.finish(); err != nil {
		return StartRequest{}, err
	}
	return StartRequest{
		Target:         netip.AddrPortFrom(ip, uint16(port)),
		ReportInterval: time.Duration(interval) * time.Millisecond,
		LeaseTTL:       time.Duration(lease) * time.Millisecond,
	}, nil
}

// parseObject reads one JSON object and nothing after it. Unlike encoding/json it tells keys apart by case and refuses
// one that comes twice.
func parseObject(body []byte) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(body))
	start, err := d.Token()
	if err != nil {
		return nil, notJSON(err)
	}
	if start != json.Delim('{') {
		return nil, fmt.Errorf("body is not a JSON object: %w", ErrInvalid)
	}
	values := make(map[string]json.RawMessage)
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, notJSON(err)
		}
		name := key.(string) // inside an object a token that is no delimiter is a key
		if _, twice := values[name]; twice {
			return nil, fmt.Errorf("%s appears twice: %w", quoted(name), ErrInvalid)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, notJSON(err)
		}
		values[name] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, notJSON(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("body goes on after the JSON object: %w", ErrInvalid)
	}
	return values, nil
}

func notJSON(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("body is not valid JSON: %w: %w", err, ErrInvalid)
}

// fieldReader takes the known keys out of an object. The first error counts.
type fieldReader struct {
	values map[string]json.RawMessage
	known  []string
	err    error
}

func (f *fieldReader) take(key string) (json.RawMessage, bool) {
	f.known = append(f.known, key)
	value, ok := f.values[key]
	delete(f.values, key)
	if !ok {
		f.fail("%s is missing", key)
	}
	return value, ok
}

func (f *fieldReader) ip(key string) netip.Addr {
	value, ok := f.take(key)
	if !ok {
		return netip.Addr{}
	}
	var text *string // nil after null
	if json.Unmarshal(value, &text) != nil || text == nil {
		f.fail("%s is %s: want a string with an IP literal", key, quoted(string(value)))
		return netip.Addr{}
	}
	addr, err := netip.ParseAddr(*text)
	if err != nil {
		f.fail("%s is %s: want an IP literal that this engine can dial", key, quoted(*text))
	}
	return addr
}

func (f *fieldReader) integer(key string, from, to int64) int64 {
	value, ok := f.take(key)
	if !ok {
		return 0
	}
	// A JSON integer is spelt as ParseInt reads it; quotes, fractions, exponents and words are not.
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || n < from || n > to {
		f.fail("%s is %s: want a whole number from %d to %d", key, quoted(string(value)), from, to)
	}
	return n
}

func (f *fieldReader) fail(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf(format+": %w", append(args, ErrInvalid)...)
	}
}

// finish returns the first error; a key that nobody took is one.
func (f *fieldReader) finish() error {
	unknownKey := ""
	for key := range f.values {
		if unknownKey == "" || key < unknownKey {
			unknownKey = key
		}
	}
	if len(f.values) > 0 && f.err == nil {
		f.fail("%s is not a known field: want %s", quoted(unknownKey), strings.Join(f.known, ", "))
	}
	return f.err
}

// quoted shows what a peer wrote, bounded.
func quoted(s string) string { return strconv.Quote(bounded(s, 64)) }
