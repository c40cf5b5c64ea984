package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/loadmonitor/loadmonitor/bench/result"
	"github.com/loadmonitor/loadmonitor/bench/subject"
)

const (
	pageBytes = 65 << 10
	pollRate  = 100 // a second, of the run that is multiplied
)

// poll compares the CPU of pushed reports with that of polling as many metrics pages.
func (b *bench) poll(row *result.Row) error {
	l := reportLoad{workers: 100, ranks: 8, connections: 100, rate: 20}
	perSecond := float64(l.workers) * l.rate
	row.What, row.Unit = "CPU of a fleet that pushes", "cores"
	row.Load = l.String()
	row.Against = "one GET and Prometheus text parse for each report"
	page := metricsPage(pageBytes)
	url, stop, err := servePage(page)
	if err != nil {
		return err
	}
	defer stop()
	row.Notes = append(row.Notes, fmt.Sprintf("The ceiling is multiplied: one client polled a page of %d bytes %d times a second; its CPU per poll × %.0f is what is shown.", len(page), pollRate, perSecond))
	err = b.turns(row, []shown{{figAllocBytes, "B/report"}, {figRate, "/s measured"}},
		func() (figures, error) {
			f, err := b.reports(subject.Monitor, l)
			if err == nil {
				f[own] = f[figCores]
			}
			return f, err
		},
		func() (figures, error) { return b.polls(url, perSecond) })
	row.Target = result.Target{Text: "≤ 1/15", Value: row.Ratio.Median, Limit: 1.0 / 15}
	return err
}

func (b *bench) polls(url string, perSecond float64) (_ figures, err error) {
	p, err := b.start(subject.Config{Kind: subject.Poller, URL: url, Rate: pollRate})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	w, err := b.window(p)
	if err != nil {
		return nil, err
	}
	if w.Messages == 0 {
		return nil, errors.New("no page was polled while it was measured")
	}
	n := float64(w.Messages)
	return figures{
		own:           w.CPU.Seconds() / n * perSecond,
		figAllocBytes: float64(w.AllocBytes) / n,
		figRate:       n / w.Wall.Seconds(),
	}, nil
}

func servePage(page string) (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write([]byte(page))
	})}
	go func() { _ = server.Serve(l) }()
	return "http://" + l.Addr().String() + "/metrics", func() { _ = server.Close() }, nil
}

// metricsPage is what an engine with eight ranks exposes: a few gauges for each rank, and many histograms. It has about as
// many bytes as asked for.
func metricsPage(bytes int) string {
	const labels = `model_name="meta-llama/Llama-3.1-70B-Instruct"`
	var b strings.Builder
	for i, name := range []string{"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"} {
		fmt.Fprintf(&b, "# HELP vllm:%s A gauge of the scheduler.\n# TYPE vllm:%s gauge\n", name, name)
		for rank := range 8 {
			fmt.Fprintf(&b, "vllm:%s{engine=\"%d\",%s} %v\n", name, rank, labels, float64(i+rank)/4)
		}
	}
	for h := 0; b.Len() < bytes; h++ {
		name := fmt.Sprintf("vllm:request_stage_%d_seconds", h)
		fmt.Fprintf(&b, "# HELP %s A histogram of latencies.\n# TYPE %s histogram\n", name, name)
		for rank := 0; rank < 8 && b.Len() < bytes; rank++ {
			for le, n := 0.001, 1; le < 1000; le, n = le*2, n+rank+1 {
				fmt.Fprintf(&b, "%s_bucket{engine=\"%d\",le=\"%g\",%s} %d\n", name, rank, le, labels, n)
			}
			fmt.Fprintf(&b, "%s_bucket{engine=\"%d\",le=\"+Inf\",%s} 400\n%s_sum{engine=\"%d\",%s} 1234.5\n%s_count{engine=\"%d\",%s} 400\n",
				name, rank, labels, name, rank, labels, name, rank, labels)
		}
	}
	return b.String()
}
