package main

import (
	"fmt"
	"regexp"
	"time"

	"github.com/loadmonitor/loadmonitor/bench/result"
)

// rows are measured in this order. Each returns its row complete but for the id.
func (b *bench) rows() []plannedRow {
	return []plannedRow{
		{"report-paced", b.reportPaced},
		{"report-saturated", b.reportSaturated},
		{"watch", b.watch},
		{"watch-spread", b.watchSpread},
		{"ingest-delay", b.ingestDelay},
		{"zmq-1024", b.zmq1024},
		{"zmq-8192", b.zmq8192},
		{"zmq-silent", b.zmqSilent},
		{"poll", b.poll},
		{"publish-one", b.publishOne},
		{"publish-1-of-10000", b.publishRatio(1, 1.5)},
		{"publish-50-of-10000", b.publishRatio(50, 3)},
		{"view-delay", b.viewDelay},
		{"stopped-readers", b.stoppedReaders},
		{"sdk-view", b.sdkView},
		{"sdk-handle", b.sdkHandle},
		{"sdk-id", b.sdkID},
		{"memory", b.memory},
		{"steady", b.steady},
	}
}

type plannedRow struct {
	id      string
	measure func(*result.Row) error
}

func (b *bench) curves() []plannedCurve {
	return []plannedCurve{
		{"cpu-workers", b.cpuByWorkers},
		{"cpu-ranks", b.cpuByRanks},
		{"cpu-watchers", b.cpuByWatchers},
		{"cpu-bytes", b.cpuByBytes},
	}
}

type plannedCurve struct {
	id      string
	measure func(*result.Curve) error
}

// measure measures every row and curve whose id matches.
func (b *bench) measure(only *regexp.Regexp) (*result.Report, error) {
	begin := time.Now()
	r := &result.Report{Mode: b.size.name, Date: begin.UTC().Format(time.RFC3339), Machine: result.ThisMachine()}
	r.Machine.LoadBefore = result.LoadAverage()
	for _, p := range b.rows() {
		if !only.MatchString(p.id) {
			continue
		}
		b.row = p.id
		row := result.Row{ID: p.id}
		if err := p.measure(&row); err != nil {
			return nil, err
		}
		r.Rows = append(r.Rows, row)
	}
	for _, p := range b.curves() {
		if !only.MatchString(p.id) {
			continue
		}
		b.row = p.id
		c := result.Curve{ID: p.id}
		if err := p.measure(&c); err != nil {
			return nil, fmt.Errorf("%s: %w", p.id, err)
		}
		r.Curves = append(r.Curves, c)
	}
	if only.MatchString("sizing") {
		var err error
		if r.Sizes, err = b.sizing(); err != nil {
			return nil, err
		}
	}
	r.Machine.LoadAfter = result.LoadAverage()
	r.Took = time.Since(begin).Round(time.Second).String()
	return r, nil
}
