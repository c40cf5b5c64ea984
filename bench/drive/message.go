package drive

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
)

// message is one worker's report, encoded but for its sequence, whose length varies. The fields that change from report
// to report are replaced in place. Its ranks have every signal that the contract has.
type message struct {
	bytes   []byte
	times   []int // where the varints of times stand, timeSize bytes each
	running []int // where the varints of running requests stand, one byte each
}

const (
	// timeSize is what a varint of milliseconds since 1970 takes, from 2004 until 2109.
	timeSize = 6
	// maxRunning is the largest number that a varint of one byte holds.
	maxRunning = 127
	// sequenceSize is the most that the field sequence_id takes.
	sequenceSize = 1 + 10

	reportSequence protowire.Number = 2
	reportTime     protowire.Number = 3
	reportRanks    protowire.Number = 7
	rankTime       protowire.Number = 2
	rankRunning    protowire.Number = 3
)

// newMessage encodes a report of the worker at addr.
func newMessage(source, addr string, ranks int, nowMs int64) (*message, error) {
	report := &modelgatewaypb.LoadReport{
		SourceInstanceId: source,
		ReportTimeUnixMs: nowMs,
		Worker:           &modelgatewaypb.Worker{WorkerAddr: addr, WorkerType: modelgatewaypb.WorkerType_WORKER_TYPE_REGULAR},
		Status:           modelgatewaypb.ReportStatus_REPORT_STATUS_HEALTHY,
	}
	for i := range ranks {
		report.Ranks = append(report.Ranks, &modelgatewaypb.RankLoad{
			DpRank: int32(i), SnapshotTimeUnixMs: nowMs,
			NumRunningReqs: maxRunning, NumWaitingReqs: 3, NumWaitingUncachedTokens: 12_000,
			NumUsedTokens: 123_456, NumTotalTokens: 234_567, MaxTotalNumTokens: 1_000_000, MaxRunningRequests: 256,
			TokenUsage: 0.12, GenThroughput: 3210.5, CacheHitRate: 0.31, Utilization: 0.72, PrefillThroughput: 9000,
		})
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(report)
	if err != nil {
		return nil, fmt.Errorf("encode a report: %w", err)
	}
	m := &message{bytes: b}
	if err := m.locate(); err != nil {
		return nil, err
	}
	if len(m.times) != 1+ranks || len(m.running) != ranks {
		return nil, fmt.Errorf("encode a report of %d ranks: found %d times and %d counts to replace", ranks, len(m.times), len(m.running))
	}
	return m, nil
}

// locate finds what is replaced.
func (m *message) locate() error {
	return fields(m.bytes, 0, func(number protowire.Number, at, size int) error {
		switch number {
		case reportTime:
			m.times = append(m.times, at)
		case reportRanks:
			return fields(m.bytes[at:at+size], at, func(number protowire.Number, at, size int) error {
				switch {
				case number == rankTime && size == timeSize:
					m.times = append(m.times, at)
				case number == rankRunning && size == 1:
					m.running = append(m.running, at)
				}
				return nil
			})
		}
		return nil
	})
}

// fields calls f with the place of each field's content in b, which begins at offset of the message.
func fields(b []byte, offset int, f func(number protowire.Number, at, size int) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b, offset = b[n:], offset+n
		if kind == protowire.BytesType {
			_, head := protowire.ConsumeVarint(b)
			if head < 0 {
				return protowire.ParseError(head)
			}
			size := protowire.ConsumeFieldValue(number, kind, b)
			if size < 0 {
				return protowire.ParseError(size)
			}
			if err := f(number, offset+head, size-head); err != nil {
				return err
			}
			b, offset = b[size:], offset+size
			continue
		}
		size := protowire.ConsumeFieldValue(number, kind, b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		if err := f(number, offset, size); err != nil {
			return err
		}
		b, offset = b[size:], offset+size
	}
	return nil
}

// encode returns the report with the given sequence, time and count of running requests on every rank. The result is the
// receiver's own.
func (m *message) encode(sequence uint64, nowMs int64, running int) mem.Buffer {
	for _, at := range m.times {
		ms := uint64(nowMs)
		for i := range timeSize - 1 {
			m.bytes[at+i] = byte(ms) | 0x80
			ms >>= 7
		}
		m.bytes[at+timeSize-1] = byte(ms)
	}
	for _, at := range m.running {
		m.bytes[at] = byte(running % (maxRunning + 1))
	}
	pool := mem.DefaultBufferPool()
	buf := pool.Get(len(m.bytes) + sequenceSize)
	b := append((*buf)[:0], m.bytes...)
	b = protowire.AppendTag(b, reportSequence, protowire.VarintType) // fields may come in any order
	*buf = protowire.AppendVarint(b, sequence)
	return mem.NewBuffer(buf, pool)
}
