package main

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/bench/result"
	"github.com/loadmonitor/loadmonitor/bench/subject"
)

// TestMain makes the test binary be a subject when it is started as one.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == subject.Word {
		exit(subject.Main(os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

func tiny(t *testing.T) *bench {
	return &bench{ctx: t.Context(), progress: io.Discard, size: size{name: "tiny", runs: 2, points: 1, warm: 100 * time.Millisecond, window: time.Second}}
}

func TestMeasurements_MeasureSomething(t *testing.T) {
	small := reportLoad{workers: 20, ranks: 2, connections: 4, rate: 20}
	for name, measure := range map[string]func(b *bench) (figures, error){
		"reports of the product":  func(b *bench) (figures, error) { return b.reports(subject.Monitor, small) },
		"reports of the ceiling":  func(b *bench) (figures, error) { return b.reports(subject.Receiver, small) },
		"messages of the product": func(b *bench) (figures, error) { return b.messages(subject.Config{Kind: subject.Monitor}, 3, 50) },
		"messages of the ceiling": func(b *bench) (figures, error) { return b.messages(like(figures{figFrame: 900}, true), 3, 50) },
		"ingest":                  func(b *bench) (figures, error) { return b.ingest(small, 3) },
		"views":                   func(b *bench) (figures, error) { return b.viewed(small, 2, 1) },
		"pipe":                    func(b *bench) (figures, error) { return b.piped(small, 2, 1000) },
		"polls": func(b *bench) (figures, error) {
			url, stop, err := servePage(metricsPage(1000))
			if err != nil {
				return nil, err
			}
			defer stop()
			return b.polls(url, 10)
		},
		"memory of the ceiling": func(b *bench) (figures, error) { return b.residentBare(small) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := measure(tiny(t))
			if err != nil {
				t.Fatal(err)
			}
			if !(f[own] > 0) {
				t.Errorf("measured %v", f)
			}
		})
	}
}

func TestTurns_AlternateAndCollect(t *testing.T) {
	b := tiny(t)
	order := ""
	row := result.Row{ID: "x"}
	run := func(who string, value float64) func() (figures, error) {
		return func() (figures, error) {
			order += who
			return figures{own: value, "extra": 2 * value}, nil
		}
	}
	if err := b.turns(&row, []shown{{"extra", "B"}}, run("p", 3), run("c", 2)); err != nil {
		t.Fatal(err)
	}
	if order != "pcpc" || row.Product.Median != 3 || row.Ceiling.Median != 2 || row.Ratio.Median != 1.5 || row.Figures[0].Product.Median != 6 {
		t.Errorf("order %s, row %+v", order, row)
	}
}

func TestDifference_SubtractsWhatRises(t *testing.T) {
	before := subject.Stats{CPU: 1, Wall: 2, Messages: 3, Frames: 4, Bytes: 5, Versions: 6, AllocBytes: 7, AllocObjects: 8, RSS: 100, DelayCount: 9}
	after := subject.Stats{CPU: 11, Wall: 22, Messages: 33, Frames: 44, Bytes: 55, Versions: 66, AllocBytes: 77, AllocObjects: 88, RSS: 90, DelayCount: 10}
	want := subject.Stats{CPU: 10, Wall: 20, Messages: 30, Frames: 40, Bytes: 50, Versions: 60, AllocBytes: 70, AllocObjects: 80, RSS: 90, DelayCount: 10}
	if got := difference(before, after); got != want {
		t.Errorf("%+v: want %+v", got, want)
	}
}

func TestMetricsPage_HasTheSizeThatIsAskedFor(t *testing.T) {
	page := metricsPage(pageBytes)
	if len(page) < pageBytes || len(page) > pageBytes*11/10 || !strings.Contains(page, "vllm:num_requests_running") {
		t.Errorf("%d bytes", len(page))
	}
}
