package rest

import (
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/loadmonitor/loadmonitor/load"
)

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD, one each.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0 // of what is not copied yet
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' {
				i++
				continue
			}
			b = append(b, s[start:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, '\\', 'n')
			case '\r':
				b = append(b, '\\', 'r')
			case '\t':
				b = append(b, '\\', 't')
			default:
				b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
			}
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			b = append(b, s[start:i]...)
			b = append(b, "\ufffd"...)
			start = i + 1
		}
		i += size
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

// appendFloat appends the shortest number that reads back as f. JSON has no word for NaN and infinity: they are unknown.
func appendFloat(b []byte, f float64) []byte {
	if !load.Finite(f) {
		return append(b, "null"...)
	}
	if f == 0 {
		return append(b, '0') // never "-0"
	}
	format := byte('f')
	if abs := math.Abs(f); abs < 1e-6 || abs >= 1e21 {
		format = 'e'
	}
	return strconv.AppendFloat(b, f, format, -1, 64)
}

const dayMs = 24 * 60 * 60 * 1000

// clock appends times. It remembers the text of the last day, because almost all times of a snapshot are of one day and
// the calendar is the costly part.
type clock struct {
	day  int64 // since 1970
	date []byte
}

// append appends a wall time in milliseconds since 1970 as an RFC 3339 string in UTC with milliseconds.
func (c *clock) append(b []byte, unixMs int64) []byte {
	day, ms := unixMs/dayMs, unixMs%dayMs
	if ms < 0 {
		day, ms = day-1, ms+dayMs
	}
	if day != c.day || c.date == nil {
		c.day = day
		c.date = time.UnixMilli(unixMs).UTC().AppendFormat(c.date[:0], `"2006-01-02T`)
	}
	b = append(b, c.date...)
	s := ms / 1000
	b = append2(b, s/3600)
	b = append(b, ':')
	b = append2(b, s/60%60)
	b = append(b, ':')
	b = append2(b, s%60)
	b = append(b, '.', byte('0'+ms%1000/100))
	b = append2(b, ms%100)
	return append(b, 'Z', '"')
}

// append2 appends two decimal digits.
func append2(b []byte, n int64) []byte { return append(b, byte('0'+n/10), byte('0'+n%10)) }
