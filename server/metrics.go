package server

import (
	"context"
	"fmt"
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/otel/attribute"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/loadmonitor/loadmonitor/load"
)

// metricPrefix stands before every name but those of the Go runtime and the process.
const metricPrefix = "loadmonitor"

// maxScrapes bounds the scrapes that run at once: each one renders every series.
const maxScrapes = 4

// newMetrics exposes the families as Prometheus text. Values are read when somebody scrapes; a series that a family no
// longer yields is gone with the next scrape (rule LIFE4).
func newMetrics(families []load.Metric) (http.Handler, error) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	exporter, err := otelprometheus.New(
		otelprometheus.WithRegisterer(reg),
		otelprometheus.WithNamespace(metricPrefix),
		otelprometheus.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes),
		otelprometheus.WithoutTargetInfo(),
		otelprometheus.WithoutScopeInfo(),
	)
	if err != nil {
		return nil, fmt.Errorf("metrics exporter: %w", err)
	}
	// Without a limit: the SDK would fold what is beyond 2,000 series of a family into one. The number of workers is
	// bounded where they are registered.
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter), sdkmetric.WithCardinalityLimit(0))
	meter := provider.Meter("github.com/loadmonitor/loadmonitor")
	seen := make(map[string]bool, len(families))
	for _, f := range families {
		if seen[f.Name] {
			return nil, fmt.Errorf("metric %q is offered twice", f.Name)
		}
		seen[f.Name] = true
		if err := observe(meter, f); err != nil {
			return nil, fmt.Errorf("metric %q: %w", f.Name, err)
		}
	}
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, EnableOpenMetrics: true}), nil
}

// observe registers one family as an observable instrument.
func observe(meter metric.Meter, f load.Metric) error {
	read := metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
		f.Collect(func(v float64, labels ...load.Label) { o.Observe(v, attributes(labels)) })
		return nil
	})
	desc := metric.WithDescription(f.Help)
	var err error
	if f.Counter {
		_, err = meter.Float64ObservableCounter(f.Name, desc, read)
	} else {
		_, err = meter.Float64ObservableGauge(f.Name, desc, read)
	}
	return err
}

func attributes(labels []load.Label) metric.MeasurementOption {
	kv := make([]attribute.KeyValue, len(labels))
	for i, l := range labels {
		kv[i] = attribute.String(l.Name, l.Value)
	}
	return metric.WithAttributeSet(attribute.NewSet(kv...))
}

// buildInfo tells which program this is.
func buildInfo(version, revision string) load.Metric {
	labels := []load.Label{{Name: "version", Value: version}, {Name: "revision", Value: revision}, {Name: "go_version", Value: runtime.Version()}}
	return load.Metric{Name: "build_info", Help: "1, with version and revision of the program.",
		Collect: func(yield func(float64, ...load.Label)) { yield(1, labels...) }}
}
