package client

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/encoding/protowire"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

// FuzzApply feeds any frames to the receiving side: nothing panics, whatever is accepted is consistent, versions of an
// epoch only rise, and ageing ends (rule LIFE3). The input is a sequence of length-delimited WatchResponse messages.
func FuzzApply(f *testing.F) {
	for _, rs := range [][]*loadmonitorpb.WatchResponse{
		{three()},
		{three(), delta(5, 6, scene{3, 3}, aWorker(2, 21, 60)), frame{Epoch: "e", View: "v", BaseVersion: 6, Version: 6, Last: true, NowUs: 300}.Build()},
		{three(), scene{2, 2}.last(frame{Epoch: "e", View: "v", BaseVersion: 5, Version: 7, Removed: []uint32{1}, Refreshed: []uint32{2}, RefreshedUs: []uint64{99}})},
		{three(), fullOf("f", 1, aWorker(1, 1, 1)), fullOf("f", 2)},
		{frame{Epoch: "e", View: "v", Version: 5, Changed: workers{aWorker(1, 1, 1)}}.Build(), scene{2, 2}.last(frame{Epoch: "e", View: "v", Version: 5, Changed: workers{aWorker(4, 1, 1)}})},
	} {
		var b bytes.Buffer
		for _, r := range rs {
			if _, err := protodelim.MarshalTo(&b, r); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(b.Bytes())
	}
	for _, file := range traces(f) {
		for _, stream := range readTrace(f, file).Streams {
			var b []byte
			for _, u := range stream.Updates {
				for _, r := range u.Frames {
					b = protowire.AppendBytes(b, r)
				}
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bytes.NewReader(data)
		var s frames
		var c *clock
		now := time.Now()
		for {
			var r loadmonitorpb.WatchResponse
			if err := protodelim.UnmarshalFrom(in, &r); err != nil {
				return
			}
			held := s.held
			out, err := s.take(&r)
			if err != nil {
				if !errors.Is(err, ErrContract) || s.held != held {
					t.Fatalf("%v; held changed: %t", err, s.held != held)
				}
				return
			}
			c = c.observe(now, now, instantFromProto(r.GetNowUs()))
			if out.picture == nil {
				continue
			}
			if held != nil && held.epoch == out.picture.epoch && out.picture.version < held.version {
				t.Fatalf("version %d after %d", out.picture.version, held.version)
			}
			consistent(t, out.picture)
			a := newAgeing(out.picture, c, "silent")
			a.advance(now)
			a.all()
			if _, more := a.next(); more || a.summary.Fresh != 0 {
				t.Fatalf("aged, %d are fresh", a.summary.Fresh)
			}
		}
	})
}
