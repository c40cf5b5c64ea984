package result

// Report is one run of the benchmark.
type Report struct {
	Mode    string  `json:"mode"` // quick or full
	Date    string  `json:"date"` // RFC 3339, UTC
	Took    string  `json:"took"`
	Machine Machine `json:"machine"`
	Rows    []Row   `json:"rows"`
	Curves  []Curve `json:"curves"`
	Sizes   []Size  `json:"sizes,omitempty"`
}

// Size is what the product as a whole needs for one fleet.
type Size struct {
	Workers  int     `json:"workers"`
	Ranks    int     `json:"ranks"` // of each worker
	Rate     float64 `json:"rate"`  // reports a second of each worker, all different
	Watchers int     `json:"watchers"`

	Cores    float64 `json:"cores"`
	MemoryMB float64 `json:"memory_mb"`
	OutMBps  float64 `json:"out_mb_per_second"` // to all watchers
	DelayP50 float64 `json:"send_to_view_p50_ms"`
	DelayP99 float64 `json:"send_to_view_p99_ms"`
	Note     string  `json:"note,omitempty"`
}

// Row is one figure of the product next to its ceiling, or next to a fixed bound.
type Row struct {
	ID      string `json:"id"`
	What    string `json:"what"`    // what is measured
	Load    string `json:"load"`    // with how much of what
	Unit    string `json:"unit"`    // of Product and Ceiling
	Against string `json:"against"` // what Ceiling is; empty: there is none

	Product Series `json:"product"`
	Ceiling Series `json:"ceiling"`
	// Ratio is Product over Ceiling, pair by pair; empty without a ceiling.
	Ratio Series `json:"ratio"`

	Target Target `json:"target"`
	// Figures are what else was seen in the same runs.
	Figures []Figure `json:"figures,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

// Target is what a row should reach. Limit bounds Value, which is the row's own measure of it.
type Target struct {
	Text  string  `json:"text"` // e.g. "≤ 1.25 ×"; empty: none
	Value float64 `json:"value"`
	Limit float64 `json:"limit"`
}

// Met reports whether there is a target and it is met.
func (t Target) Met() bool { return t.Text != "" && t.Value <= t.Limit }

// Figure is a further series of a row, of the product or of its ceiling.
type Figure struct {
	Name    string `json:"name"`
	Unit    string `json:"unit"`
	Product Series `json:"product"`
	Ceiling Series `json:"ceiling"`
}

// Curve shows how figures grow with one size.
type Curve struct {
	ID    string   `json:"id"`
	Title string   `json:"title"`
	X     string   `json:"x"` // what grows
	Y     string   `json:"y"` // figure and unit
	Lines []Line   `json:"lines"`
	Notes []string `json:"notes,omitempty"`
}

// Line is one line of a curve.
type Line struct {
	Name   string  `json:"name"`
	Points []Point `json:"points"`
}

// Point is one size.
type Point struct {
	X float64 `json:"x"`
	Y Series  `json:"y"`
	// Note says how the size differs from what was asked for, e.g. that the machine held less; empty: it does not.
	Note string `json:"note,omitempty"`
}
