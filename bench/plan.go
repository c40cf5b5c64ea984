package main

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/loadmonitor/loadmonitor/bench/result"
)

// planned is a row or a curve of the report.
type planned[T any] struct {
	id      string
	measure func(*T) error
	large   bool // left out in quick mode
}

// rows are measured in this order.
func (b *bench) rows() []planned[result.Row] {
	return []planned[result.Row]{
		{id: "report-paced", measure: b.reportPaced},
		{id: "report-saturated", measure: b.reportSaturated},
		{id: "watch", measure: b.watch},
		{id: "watch-spread", measure: b.watchSpread, large: true},
		{id: "ingest-delay", measure: b.apart(b.ingestDelay)},
		{id: "zmq-1024", measure: b.zmq1024},
		{id: "zmq-8192", measure: b.zmq8192, large: true},
		{id: "zmq-silent", measure: b.zmqSilent, large: true},
		{id: "poll", measure: b.poll},
		{id: "publish-one", measure: b.publishOne},
		{id: "publish-1-of-10000", measure: b.publishRatio(1, 1.5)},
		{id: "publish-50-of-10000", measure: b.publishRatio(50, 3)},
		{id: "view-delay", measure: b.apart(b.viewDelay)},
		{id: "stopped-readers", measure: b.apart(b.stoppedReaders), large: true},
		{id: "sdk-view", measure: b.sdkView},
		{id: "sdk-handle", measure: b.sdkHandle},
		{id: "sdk-id", measure: b.sdkID},
		{id: "memory", measure: b.memory},
		{id: "steady", measure: b.steady},
	}
}

func (b *bench) curves() []planned[result.Curve] {
	return []planned[result.Curve]{
		{id: "cpu-workers", measure: b.cpuByWorkers},
		{id: "cpu-ranks", measure: b.cpuByRanks},
		{id: "cpu-watchers", measure: b.cpuByWatchers},
		{id: "cpu-bytes", measure: b.cpuByBytes, large: true},
	}
}

// measure measures every row and curve whose id matches. With the report of what could be measured comes an error of what
// could not; without a report it was interrupted.
func (b *bench) measure(only *regexp.Regexp) (*result.Report, error) {
	begin := time.Now()
	r := &result.Report{Mode: b.size.name, Date: begin.UTC().Format(time.RFC3339), Machine: result.ThisMachine()}
	r.Machine.LoadBefore = result.LoadAverage()
	for _, p := range b.rows() {
		if !b.wants(only, p.id, p.large) {
			continue
		}
		b.row = p.id
		row := result.Row{ID: p.id}
		if err := p.measure(&row); err != nil {
			if b.failed(err) {
				return nil, err
			}
			row.Target = result.Target{}
			row.Notes = append(row.Notes, "Not measured: "+err.Error())
		}
		r.Rows = append(r.Rows, row)
	}
	for _, p := range b.curves() {
		if !b.wants(only, p.id, p.large) {
			continue
		}
		b.row = p.id
		c := result.Curve{ID: p.id}
		if err := p.measure(&c); err != nil {
			if b.failed(err) {
				return nil, err
			}
			continue
		}
		r.Curves = append(r.Curves, c)
	}
	if b.wants(only, "sizing", true) {
		var err error
		b.row = "sizing"
		if r.Sizes, err = b.sizing(); err != nil && b.failed(err) {
			return nil, err
		}
	}
	r.Machine.LoadAfter = result.LoadAverage()
	r.Took = time.Since(begin).Round(time.Second).String()
	return r, errors.Join(b.failures...)
}

// failed notes that something could not be measured, which costs the rest nothing, and tells whether to end because the
// benchmark is interrupted.
func (b *bench) failed(err error) (end bool) {
	b.say("%s failed: %v", b.row, err)
	b.failures = append(b.failures, fmt.Errorf("%s: %w", b.row, err))
	return b.ctx.Err() != nil
}

// wants reports whether to measure something: what is named, else what the mode holds.
func (b *bench) wants(only *regexp.Regexp, id string, large bool) bool {
	if only.String() != "" {
		return only.MatchString(id)
	}
	return b.size.large || !large
}
