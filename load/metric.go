package load

// Metric is one family of figures that a room offers to whoever exposes metrics. Rooms count with atomics on their own
// paths; Collect reads them when somebody asks, so that exposing costs nothing in between.
type Metric struct {
	// Name without the product's prefix, e.g. "reports_accepted_total"; counters end in _total, units are spelled out.
	Name string
	Help string
	// Counter says that values only rise; otherwise the family is a gauge.
	Counter bool
	// Collect yields each value with its labels. Label values come from configuration and fixed sets only (rule LIFE4).
	// It must be safe to call from any goroutine.
	Collect func(yield func(value float64, labels ...Label))
}

// Label is one name and value of a metric.
type Label struct{ Name, Value string }
