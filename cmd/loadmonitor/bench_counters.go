package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// counters are what a monitor says of itself.
type counters struct {
	accepted, refused uint64  // reports since its start
	cpu               float64 // seconds since its start
	memory            uint64  // resident bytes
}

// fetchCounters reads the metrics of the monitor at addr; all zero when addr is empty.
func fetchCounters(ctx context.Context, addr string) (counters, error) {
	var c counters
	if addr == "" {
		return c, nil
	}
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(addr, "/")+"/metrics", nil)
	if err != nil {
		return c, fmt.Errorf("http is %q: %w", addr, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return c, fmt.Errorf("read the monitor's counters, is --http right?: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return c, fmt.Errorf("read the monitor's counters: %s answered %s", req.URL, resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return c, fmt.Errorf("read the monitor's counters: %w", err)
	}
	for name, to := range map[string]func(float64){
		"loadmonitor_reports_accepted_total": func(v float64) { c.accepted = uint64(v) },
		"loadmonitor_reports_refused_total":  func(v float64) { c.refused = uint64(v) },
		"process_cpu_seconds_total":          func(v float64) { c.cpu = v },
		"process_resident_memory_bytes":      func(v float64) { c.memory = uint64(v) },
	} {
		f, ok := families[name]
		if !ok {
			return c, fmt.Errorf("read the monitor's counters: %s has no %s: is it a load monitor?", req.URL, name)
		}
		to(sumOf(f))
	}
	return c, nil
}

func sumOf(f *dto.MetricFamily) float64 {
	var total float64
	for _, m := range f.GetMetric() {
		total += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
	}
	return total
}
