package pub

// Step is what a rank's scheduler did in one turn of its loop.
type Step uint8

const (
	Decode  Step = iota // it ran a batch that makes tokens
	Prefill             // it ran a batch that computes prompts
	Idle                // nothing runs and nothing waits
	Stalled             // requests wait, and none of them can be run
)

// Form is how a payload is written. Every form tells the same load, as far as it can.
type Form uint8

const (
	// LoadStat is the tagged array of eleven elements.
	LoadStat Form = iota
	// LoadStatShort is the tagged array of six elements, which older engines send.
	LoadStatShort
	// LoadSnapshot is the map with field names, of which those at their default are left out.
	LoadSnapshot
)

// String returns the word for logs and JSON.
func (f Form) String() string {
	switch f {
	case LoadStat:
		return "load_stat"
	case LoadStatShort:
		return "load_stat_short"
	case LoadSnapshot:
		return "load_snapshot"
	}
	return "unknown"
}
