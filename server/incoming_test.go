package server

import (
	"encoding/binary"
	"slices"
	"testing"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
)

// message returns b as gRPC sends it.
func message(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// report begins a report stream in which the bytes come in frames of the size, and ends its half of it if end is true.
func (p *rawPeer) report(size int, end bool, b []byte) {
	p.t.Helper()
	stream := p.callWith(modelgatewaypb.LoadMonitorService_Report_FullMethodName, false, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	for frame := range slices.Chunk(b, size) {
		if err := p.framer.WriteData(stream, false, frame); err != nil {
			p.t.Fatal(err)
		}
	}
	if end {
		if err := p.framer.WriteData(stream, true, nil); err != nil {
			p.t.Fatal(err)
		}
	}
}

// Frames and messages begin and end independently of each other, and a message may be empty.
func TestIncoming_FramesAreNotMessages(t *testing.T) {
	r := start(t, Options{})
	p := newRawPeer(t, r.GRPCAddr().String())
	var all []byte
	for seq := range uint64(20) {
		all = append(all, message(marshal(t, sane("src", seq+1)))...)
		all = append(all, message(nil)...)
	}
	for _, size := range []int{1, 3, 333, 1 << 14} {
		p.report(size, true, all)
		for seq := range uint64(20) {
			if got := next(t, r.ingest.applied, "report"); got.Sequence != seq+1 || got.SourceInstance != "src" || len(got.Ranks) != 1 {
				t.Fatalf("frames of %d: applied %+v", size, got)
			}
			if got := next(t, r.ingest.applied, "empty report"); got.Sequence != 0 || got.SourceInstance != "" || len(got.Ranks) != 0 {
				t.Fatalf("frames of %d: the empty message is %+v", size, got)
			}
		}
		next(t, r.ingest.ended, "release")
	}
	await(t, "every stream ended because it was half closed", func() bool { return r.reports.ended.count("half_closed") == 4 })
}

// What is no message ends its stream at its first bytes.
func TestIncoming_RefusesWhatIsNoMessage(t *testing.T) {
	whole := message(marshal(t, sane("src", 1)))
	cases := []struct {
		name  string
		bytes []byte
		end   bool
		code  string // as in grpc-status
	}{
		{"one byte too many", binary.BigEndian.AppendUint32([]byte{0}, 1<<20+1), false, "8"},
		{"4 GiB", []byte{0, 0xff, 0xff, 0xff, 0xff}, false, "8"},
		{"compressed", []byte{1, 0, 0, 0, 1}, false, "3"},
		{"ends in its header", whole[:3], true, "14"},
		{"ends after its header", whole[:5], true, "14"},
		{"ends in its body", whole[:len(whole)-1], true, "14"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, Options{})
			p := newRawPeer(t, r.GRPCAddr().String())
			p.report(1<<14, c.end, c.bytes)
			await(t, "the stream ends with "+c.code, func() bool { return p.told(c.code) != "" })
			next(t, r.ingest.ended, "release")
			if n := len(r.ingest.applied); n > 0 {
				t.Errorf("%d reports were applied", n)
			}
		})
	}
}
