package result

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Markdown writes the report for people. Plots are linked by plot, which gives the address of a curve's picture.
func (r *Report) Markdown(plot func(*Curve) string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmark, %s mode\n\n", r.Mode)
	b.WriteString(r.header())
	b.WriteString("\n")
	b.WriteString(r.Table())
	b.WriteString("\n## Details\n\n")
	for i := range r.Rows {
		b.WriteString(r.Rows[i].details())
	}
	if len(r.Sizes) > 0 {
		b.WriteString("## Sizes\n\n" + r.SizeTable() + "\n")
	}
	if len(r.Curves) > 0 {
		b.WriteString("## Growth\n\n")
	}
	for i := range r.Curves {
		c := &r.Curves[i]
		fmt.Fprintf(&b, "### %s\n\n![%s](%s)\n\n", c.Title, c.Title, plot(c))
		b.WriteString(c.table())
		for _, n := range c.Notes {
			fmt.Fprintf(&b, "- %s\n", n)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (r *Report) header() string {
	var b strings.Builder
	m := &r.Machine
	fmt.Fprintf(&b, "%s, in %s. %s, %d CPUs, %d MB, %s.\n", r.Date, r.Took, m.CPU, m.CPUs, m.MemoryMB, m.OS)
	var versions []string
	for _, name := range slices.Sorted(maps.Keys(m.Versions)) {
		versions = append(versions, name+" "+m.Versions[name])
	}
	fmt.Fprintf(&b, "%s.\n", strings.Join(versions, ", "))
	fmt.Fprintf(&b, "Load average before %.1f, after %.1f.\n", m.LoadBefore, m.LoadAfter)
	if m.LoadBefore > float64(m.CPUs)/2 {
		b.WriteString("\n**Others were using this machine. CPU figures are roughly right, delays are not.**\n")
	}
	return b.String()
}

// Table writes one line for each row.
func (r *Report) Table() string {
	var b strings.Builder
	b.WriteString("| what | load | product | ceiling | ratio | target | met |\n|---|---|---|---|---|---|---|\n")
	for i := range r.Rows {
		row := &r.Rows[i]
		ceiling, ratio := "–", "–"
		if row.Against != "" {
			ceiling = fmt.Sprintf("%s (%s)", row.Ceiling.text(row.Unit), row.Against)
			ratio = fmt.Sprintf("%.2f (%.2f to %.2f)", row.Ratio.Median, row.Ratio.Low, row.Ratio.High)
		}
		met := "–"
		if row.Target.Text != "" {
			met = "no"
			if row.Target.Met() {
				met = "yes"
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", row.What, row.Load, row.Product.text(row.Unit), ceiling, ratio, row.Target.Text, met)
	}
	b.WriteString("\nMedians of all runs; in brackets the quartiles. Product and ceiling took turns.\n")
	return b.String()
}

// SizeTable writes one line for each size.
func (r *Report) SizeTable() string {
	var b strings.Builder
	b.WriteString("| workers | ranks each | Hz | watchers | cores | memory | out | send to view p50, p99 | |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, s := range r.Sizes {
		fmt.Fprintf(&b, "| %d | %d | %g | %d | %s | %.0f MB | %s MB/s | %s ms, %s ms | %s |\n",
			s.Workers, s.Ranks, s.Rate, s.Watchers, number(s.Cores), s.MemoryMB, number(s.OutMBps), number(s.DelayP50), number(s.DelayP99), s.Note)
	}
	return b.String() + "\nThe whole binary, its engines registered, every report with new numbers, beside one decoding watcher.\n"
}

func (row *Row) details() string {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n%s. %d runs.\n", row.What, row.Load, len(row.Product.Values))
	if row.Target.Text != "" {
		fmt.Fprintf(&b, "Target %s: reached %s.\n", row.Target.Text, number(row.Target.Value))
	}
	b.WriteString("\n")
	if len(row.Figures) > 0 {
		b.WriteString("| figure | product | ceiling |\n|---|---|---|\n")
		for _, f := range row.Figures {
			ceiling := "–"
			if len(f.Ceiling.Values) > 0 {
				ceiling = f.Ceiling.text(f.Unit)
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", f.Name, f.Product.text(f.Unit), ceiling)
		}
		b.WriteString("\n")
	}
	for _, n := range row.Notes {
		fmt.Fprintf(&b, "- %s\n", n)
	}
	b.WriteString("\n")
	return b.String()
}

func (c *Curve) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |", c.X)
	for _, l := range c.Lines {
		fmt.Fprintf(&b, " %s |", l.Name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(c.Lines)) + "\n")
	var xs []float64
	for _, l := range c.Lines {
		for _, p := range l.Points {
			xs = append(xs, p.X)
		}
	}
	slices.Sort(xs)
	for _, x := range slices.Compact(xs) {
		fmt.Fprintf(&b, "| %s |", number(x))
		for _, l := range c.Lines {
			cell := "–"
			for _, p := range l.Points {
				if p.X == x {
					cell = p.Y.text("")
					if p.Note != "" {
						cell += ", " + p.Note
					}
				}
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	return b.String() + "\n" + c.Y + ".\n"
}

// text is the median with its quartiles.
func (s Series) text(unit string) string {
	switch len(s.Values) {
	case 0:
		return "–"
	case 1:
		return strings.TrimSpace(number(s.Median) + " " + unit)
	}
	return strings.TrimSpace(fmt.Sprintf("%s [%s to %s] %s", number(s.Median), number(s.Low), number(s.High), unit))
}

// number writes three significant digits, and whole numbers as they are.
func number(f float64) string {
	switch size := math.Abs(f); {
	case f == math.Trunc(f) && size < 1e15, size >= 100:
		return fmt.Sprintf("%.0f", f)
	case size >= 10:
		return fmt.Sprintf("%.1f", f)
	case size >= 0.01:
		return fmt.Sprintf("%.2f", f)
	default:
		return fmt.Sprintf("%.3g", f)
	}
}
