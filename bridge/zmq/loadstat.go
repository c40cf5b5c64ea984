package zmq

import "github.com/loadmonitor/loadmonitor/load"

// The array form: a tag, four counts, optionally the rank, optionally five more figures that come all together or not at
// all, and then whatever later engines append.
const (
	loadStatTag      = "LoadStat"
	loadStatCounts   = 5  // tag and four counts
	loadStatRank     = 6  // and the rank
	loadStatComplete = 11 // and the five figures
)

var loadStatHead = [...]load.IntSignal{load.NumRunningReqs, load.NumWaitingReqs, load.NumUsedTokens, load.MaxTotalNumTokens}

var loadStatTail = [...]load.IntSignal{
	load.NumWaitingUncachedTokens, load.NumTotalTokens, load.MaxRunningRequests, load.TotalPrefillUncachedTokens,
	load.TotalPrefillBusyUs,
}

// loadStat decodes the array form. A capacity of zero is unknown here and leaves the rank fresh (rule FR5); a figure that
// is not on the wire stays unknown (rule VAL1).
func (d *Decoder) loadStat(out *Decoded) error {
	n, err := d.in.DecodeArrayLen()
	if err != nil {
		return rejectPayload("", "is cut off")
	}
	// Every element takes at least one byte.
	if n > d.bytes.Len() {
		return rejectPayload("", "announces more elements than it has bytes")
	}
	if n < loadStatCounts || n > loadStatRank && n < loadStatComplete {
		return rejectPayload("", "is an array of a length that LoadStat does not have")
	}
	tag, err := d.word()
	if err != nil {
		return err
	}
	if string(tag) != loadStatTag {
		return rejectPayload("", "is an array that is not tagged LoadStat")
	}
	out.CapacityOptional = true
	if err := d.counts(loadStatHead[:], out); err != nil {
		return err
	}
	if n >= loadStatRank {
		if err := d.toldRank(out); err != nil {
			return err
		}
	}
	if n < loadStatComplete {
		return nil
	}
	if err := d.counts(loadStatTail[:], out); err != nil {
		return err
	}
	return d.skip(n - loadStatComplete)
}

func (d *Decoder) counts(signals []load.IntSignal, out *Decoded) error {
	for _, s := range signals {
		v, err := d.count(s.String())
		if err != nil {
			return err
		}
		if v == 0 && (s == load.MaxTotalNumTokens || s == load.MaxRunningRequests) {
			continue
		}
		out.Load.SetInt(s, v)
	}
	return nil
}
