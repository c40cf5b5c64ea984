package server

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// The push contract is frozen and has three messages, so reports are decoded here, straight into the domain's values: it
// takes half of the time that protobuf's messages take, and a report that repeats its names allocates nothing. What is
// taken and what is refused is protobuf's (FuzzDecode holds it against that), but for last_error (rule VAL3) and for groups.

// Fields of the contract by number.
const (
	sourceField     = 1
	sequenceField   = 2
	reportTimeField = 3
	workerField     = 4
	statusField     = 5
	lastErrorField  = 6
	ranksField      = 7

	addressField = 1
	typeField    = 2
	modelField   = 3
	zoneField    = 4
)

// Fields of a RankLoad by number.
const (
	_ = iota
	dpRankField
	snapshotTimeField
	numRunningReqsField
	numWaitingReqsField
	numWaitingUncachedTokensField
	numUsedTokensField
	numTotalTokensField
	maxTotalNumTokensField
	maxRunningRequestsField
	tokenUsageField // the first that is a double
	genThroughputField
	cacheHitRateField
	utilizationField
	prefillThroughputField
	numRankFields
)

// Bounds of strings in a report, bytes (rule VAL3). What identifies is refused when it is longer, what is only shown is
// cut.
const (
	maxSourceInstance = 256
	maxModel          = 256
	maxAddress        = 512
	maxLastError      = 512
)

var (
	errMalformed = errors.New("malformed field")
	errNotText   = errors.New("text is not valid UTF-8")
)

// field is one field of an encoded message.
type field struct {
	number protowire.Number
	wire   protowire.Type
	value  uint64 // of VarintType and Fixed64Type
	bytes  []byte // of BytesType
}

// consume takes the first field off b, which is not empty. It returns false when b is malformed. A group, which the
// language of the contract cannot say, is: protowire skips nested ones by recursion, and a message of 20 KB would leave the
// stack of its stream at a megabyte.
func (f *field) consume(b *[]byte) bool {
	rest := *b
	tag, n := varint(rest)
	number := tag >> 3
	if n < 0 || number < uint64(protowire.MinValidNumber) || number > uint64(protowire.MaxValidNumber) {
		return false
	}
	rest = rest[n:]
	f.number, f.wire = protowire.Number(number), protowire.Type(tag&7)
	switch f.wire {
	case protowire.VarintType:
		f.value, n = varint(rest)
	case protowire.Fixed64Type:
		f.value, n = protowire.ConsumeFixed64(rest)
	case protowire.BytesType:
		f.bytes, n = protowire.ConsumeBytes(rest)
	case protowire.StartGroupType:
		return false
	default:
		n = protowire.ConsumeFieldValue(f.number, f.wire, rest)
	}
	if n < 0 {
		return false
	}
	*b = rest[n:]
	return true
}

// varint is protowire.ConsumeVarint, without a call for the many values of one byte.
func varint(b []byte) (uint64, int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	return protowire.ConsumeVarint(b)
}

// names are the texts that identify, as the report before had them: those that are the same are not made again.
type names struct{ source, address, model string }

// decodeReport fills r with an encoded LoadReport; r keeps nothing of b, and r.Ranks is used again. Of more than maxRanks
// ranks one more is decoded, which is enough for the report to be refused. It refuses identities that are too long and
// judges nothing else: negative counters, sequences and ranks pass as they were sent. An error wraps errUndecodable or a
// sentinel of load.
func decodeReport(b []byte, r *load.Report, last *names, maxRanks int) error {
	*r = load.Report{Ranks: r.Ranks[:0]}
	var f field
	for len(b) > 0 {
		if !f.consume(&b) {
			return undecodable(errMalformed)
		}
		var err error
		// A known number with another type is an unknown field, as for protobuf.
		switch {
		case f.wire == protowire.VarintType && f.number == sequenceField:
			r.Sequence = f.value
		case f.wire == protowire.VarintType && f.number == reportTimeField:
			r.ReportTimeUnixMs = int64(f.value)
		case f.wire == protowire.VarintType && f.number == statusField:
			r.Status = statusFromProto(modelgatewaypb.ReportStatus(f.value))
		case f.wire != protowire.BytesType:
		case f.number == sourceField:
			r.SourceInstance, err = name(f.bytes, last.source, "source_instance_id", maxSourceInstance, load.ErrSourceInstance)
		case f.number == workerField:
			err = decodeWorker(f.bytes, &r.Claim, last)
		case f.number == lastErrorField:
			r.LastError = bounded(strings.ToValidUTF8(string(f.bytes), "\uFFFD"), maxLastError)
		case f.number == ranksField && len(r.Ranks) <= maxRanks:
			r.Ranks = slices.Grow(r.Ranks, 1)[:len(r.Ranks)+1]
			err = decodeRank(f.bytes, &r.Ranks[len(r.Ranks)-1])
		}
		if err != nil {
			return err
		}
	}
	*last = names{source: r.SourceInstance, address: r.Claim.Address, model: r.Claim.Model}
	return nil
}

// decodeWorker adds an encoded Worker to c: a message that is sent in parts is one.
func decodeWorker(b []byte, c *load.Claim, last *names) error {
	var f field
	for len(b) > 0 {
		if !f.consume(&b) {
			return undecodable(errMalformed)
		}
		var err error
		switch {
		case f.wire == protowire.VarintType && f.number == typeField:
			c.Role = roleFromProto(modelgatewaypb.WorkerType(f.value))
		case f.wire != protowire.BytesType:
		case f.number == addressField:
			c.Address, err = name(f.bytes, last.address, "worker_addr", maxAddress, load.ErrUnknownWorker)
		case f.number == modelField:
			c.Model, err = name(f.bytes, last.model, "model", maxModel, load.ErrModelMismatch)
		case f.number == zoneField && !utf8.Valid(f.bytes):
			err = undecodable(errNotText)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// name returns b as text that identifies: one that is no text names nobody.
func name(b []byte, last, field string, limit int, refusal error) (string, error) {
	switch {
	case string(b) == last:
		return last, nil
	case len(b) > limit:
		return "", tooLong(field, len(b), limit, refusal)
	case !utf8.Valid(b):
		return "", undecodable(fmt.Errorf("%s: %w", field, errNotText))
	}
	return string(b), nil
}

// decodeRank fills l with an encoded RankLoad. The contract has no presence: a counter of 0 is 0, but a capacity of 0 is one
// that the engine does not know yet (rule FR5), and a negative share is unknown (rule VAL2).
func decodeRank(b []byte, l *load.RankLoad) error {
	var values [numRankFields]uint64 // by number; what is not sent is 0
	var f field
	for len(b) > 0 {
		if !f.consume(&b) {
			return undecodable(errMalformed)
		}
		want := protowire.VarintType
		if f.number >= tokenUsageField {
			want = protowire.Fixed64Type
		}
		if f.number < numRankFields && f.wire == want {
			values[f.number] = f.value
		}
	}
	whole := func(n int) int64 { return int64(values[n]) }
	fraction := func(n int) float64 { return math.Float64frombits(values[n]) }

	*l = load.RankLoad{DPRank: int32(values[dpRankField]), SnapshotTimeUnixMs: whole(snapshotTimeField)}
	l.SetInt(load.NumRunningReqs, whole(numRunningReqsField))
	l.SetInt(load.NumWaitingReqs, whole(numWaitingReqsField))
	l.SetInt(load.NumWaitingUncachedTokens, whole(numWaitingUncachedTokensField))
	l.SetInt(load.NumUsedTokens, whole(numUsedTokensField))
	l.SetInt(load.NumTotalTokens, whole(numTotalTokensField))
	setCapacity(l, load.MaxTotalNumTokens, whole(maxTotalNumTokensField))
	setCapacity(l, load.MaxRunningRequests, whole(maxRunningRequestsField))

	setShare(l, load.TokenUsage, fraction(tokenUsageField))
	setShare(l, load.CacheHitRate, fraction(cacheHitRateField))
	setShare(l, load.Utilization, fraction(utilizationField))
	l.SetFloat(load.GenThroughput, fraction(genThroughputField))
	l.SetFloat(load.PrefillThroughput, fraction(prefillThroughputField))
	return nil
}

func undecodable(err error) error { return fmt.Errorf("%w: %w", errUndecodable, err) }
