package result

import (
	"math"
	"slices"
)

// Series is the same figure from several runs.
type Series struct {
	Values []float64 `json:"values"` // in the order of the runs
	Median float64   `json:"median"`
	Low    float64   `json:"low"`  // lower quartile
	High   float64   `json:"high"` // upper quartile
}

// NewSeries describes values; no value gives a zero series.
func NewSeries(values []float64) Series {
	s := Series{Values: values}
	if len(values) == 0 {
		return s
	}
	sorted := slices.Sorted(slices.Values(values))
	s.Median, s.Low, s.High = quantile(sorted, 0.5), quantile(sorted, 0.25), quantile(sorted, 0.75)
	return s
}

// quantile interpolates between the sorted values around the share q.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	below := int(math.Floor(at))
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (at-float64(below))*(sorted[above]-sorted[below])
}

// Ratios divides pair by pair, as the runs took turns; the shorter one counts.
func Ratios(a, b Series) Series {
	var values []float64
	for i := range min(len(a.Values), len(b.Values)) {
		if b.Values[i] != 0 {
			values = append(values, a.Values[i]/b.Values[i])
		}
	}
	return NewSeries(values)
}
