package result

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSeries_DescribesItsValues(t *testing.T) {
	for _, c := range []struct {
		values            []float64
		low, median, high float64
	}{
		{nil, 0, 0, 0},
		{[]float64{7}, 7, 7, 7},
		{[]float64{3, 1}, 1.5, 2, 2.5},
		{[]float64{5, 1, 4, 2, 3}, 2, 3, 4},
	} {
		s := NewSeries(c.values)
		if s.Low != c.low || s.Median != c.median || s.High != c.high {
			t.Errorf("%v: %v %v %v: want %v %v %v", c.values, s.Low, s.Median, s.High, c.low, c.median, c.high)
		}
	}
}

func TestRatios_ArePairByPair(t *testing.T) {
	got := Ratios(NewSeries([]float64{2, 9, 8}), NewSeries([]float64{1, 3, 0}))
	if diff := cmp.Diff([]float64{2, 3}, got.Values); diff != "" {
		t.Error(diff)
	}
}

func sample() *Report {
	return &Report{
		Mode: "quick", Date: "2030-01-02T03:04:05Z", Took: "1m0s",
		Machine: Machine{CPU: "some CPU", CPUs: 2, MemoryMB: 1000, OS: "linux", Versions: map[string]string{"go": "go1"}, LoadBefore: 5},
		Rows: []Row{
			{ID: "a", What: "CPU of <something>", Load: "10 workers", Unit: "µs", Against: "a bare one", Product: NewSeries([]float64{12, 13}), Ceiling: NewSeries([]float64{10, 10}),
				Ratio: NewSeries([]float64{1.2, 1.3}), Target: Target{Text: "≤ 1.25 ×", Value: 1.25, Limit: 1.25}, Figures: []Figure{{Name: "garbage", Unit: "B", Product: NewSeries([]float64{4})}}, Notes: []string{"a note"}},
			{ID: "b", What: "memory", Load: "none", Unit: "MB", Product: NewSeries([]float64{3}), Target: Target{Text: "≤ 1", Value: 3, Limit: 1}},
		},
		Curves: []Curve{{ID: "c", Title: "CPU & more", X: "workers", Y: "µs", Lines: []Line{
			{Name: "product", Points: []Point{{X: 100, Y: NewSeries([]float64{1})}, {X: 1000, Y: NewSeries([]float64{2, 3}), Note: "held less"}}},
			{Name: "ceiling", Points: []Point{{X: 100, Y: NewSeries([]float64{0})}}},
		}}},
	}
}

func TestMarkdown_SaysWhatIsMet(t *testing.T) {
	text := sample().Markdown(func(c *Curve) string { return c.ID + ".svg" })
	for _, want := range []string{
		"| CPU of <something> | 10 workers | 12.5 [12.2 to 12.8] µs | 10 [10 to 10] µs (a bare one) | 1.25 (1.23 to 1.27) | ≤ 1.25 × | yes |",
		"| memory | none | 3 MB | – | – | ≤ 1 | no |",
		"| garbage | 4 B | – |", "- a note", "Others were using this machine", "![CPU & more](c.svg)", "2.50 [2.25 to 2.75], held less", "go go1",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
}

func TestSVG_IsWellFormed(t *testing.T) {
	for name, c := range map[string]*Curve{"curve": &sample().Curves[0], "one point": {Lines: []Line{{Points: []Point{{X: 5, Y: NewSeries([]float64{1})}}}}}, "empty": {}} {
		text := c.SVG()
		d := xml.NewDecoder(strings.NewReader(text))
		for {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, text)
			}
		}
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("%s: not every place is a number:\n%s", name, text)
		}
	}
}

func TestWrite_CanBeRead(t *testing.T) {
	dir := t.TempDir()
	want := sample()
	if err := want.Write(dir, "quick"); err != nil {
		t.Fatal(err)
	}
	got, err := Read(filepath.Join(dir, "quick.json"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, file := range []string{"quick.md", "quick-c.svg"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Error(err)
		}
	}
}

func TestDocument_ReplacesTheMarkedPart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "performance.md")
	if err := sample().Document(file); err == nil {
		t.Error("a file that is not there was written")
	}
	for _, text := range []string{"# Title\n\nno marks\n", "# Title\n" + documentBegin} {
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := sample().Document(file); err == nil || !strings.Contains(err.Error(), "bench: end") {
			t.Errorf("a file without marks was changed: %v", err)
		}
	}
	if err := os.WriteFile(file, []byte("# Title\n"+documentBegin+"old\n"+documentEnd+"more\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := sample().Document(file); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := string(text)
	if !strings.HasPrefix(s, "# Title\n") || !strings.HasSuffix(s, documentEnd+"more\n") || strings.Contains(s, "old") ||
		strings.Count(s, "CPU of <something>") != 1 || !strings.Contains(s, "(performance/c.svg)") {
		t.Errorf("the file became:\n%s", s)
	}
	if _, err := os.Stat(filepath.Join(strings.TrimSuffix(file, ".md"), "c.svg")); err != nil {
		t.Error(err)
	}
}
