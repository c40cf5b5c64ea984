package result

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// The picture's geometry, pixels.
const (
	svgWidth, svgHeight = 640, 360
	plotLeft, plotRight = 70, 620
	plotTop, plotBottom = 44, 300
)

// Colours that people with colour-blindness can tell apart, on light and dark ground.
var svgColours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7"}

// SVG draws the curve: sizes on a logarithmic axis, the figure on a linear one from zero, with quartiles as bars.
func (c *Curve) SVG() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", svgWidth, svgHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", svgWidth, svgHeight)
	fmt.Fprintf(&b, `<text x="%d" y="22" font-size="15">%s</text>`+"\n", plotLeft, html.EscapeString(c.Title))
	x, y := c.axes()
	for _, v := range y.ticks {
		at := y.place(v)
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#dddddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			plotLeft, at, plotRight, plotLeft-8, at+4, number(v))
	}
	for _, v := range x.ticks {
		at := x.place(v)
		fmt.Fprintf(&b, `<path d="M%.1f %dV%d" stroke="#dddddd"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			at, plotTop, plotBottom, at, plotBottom+18, number(v))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (plotLeft+plotRight)/2, plotBottom+38, html.EscapeString(c.X))
	fmt.Fprintf(&b, `<text transform="translate(16 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n", (plotTop+plotBottom)/2, html.EscapeString(c.Y))
	for i, l := range c.Lines {
		colour := svgColours[i%len(svgColours)]
		var path []string
		for _, p := range l.Points {
			px, py := x.place(p.X), y.place(p.Y.Median)
			path = append(path, fmt.Sprintf("%.1f %.1f", px, py))
			fmt.Fprintf(&b, `<path d="M%.1f %.1fV%.1f" stroke="%s" stroke-width="2"/><circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>`+"\n",
				px, y.place(p.Y.Low), y.place(p.Y.High), colour, px, py, colour)
		}
		fmt.Fprintf(&b, `<path d="M%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(path, "L"), colour)
		fmt.Fprintf(&b, `<circle cx="%d" cy="%d" r="4" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n",
			plotLeft+i*180, svgHeight-8, colour, plotLeft+i*180+10, svgHeight-4, html.EscapeString(l.Name))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// axis maps values to pixels.
type axis struct {
	place func(float64) float64
	ticks []float64
}

func (c *Curve) axes() (x, y axis) {
	top := 0.0
	for _, l := range c.Lines {
		for _, p := range l.Points {
			if p.X > 0 {
				x.ticks = append(x.ticks, p.X)
			}
			top = max(top, p.Y.Median, p.Y.High)
		}
	}
	slices.Sort(x.ticks)
	x.ticks = slices.Compact(x.ticks)
	low, high := 1.0, 10.0
	if len(x.ticks) > 0 {
		low, high = x.ticks[0], x.ticks[len(x.ticks)-1]
	}
	if low == high {
		high = low * 10
	}
	x.place = func(v float64) float64 {
		return plotLeft + 20 + (plotRight-plotLeft-40)*math.Log(v/low)/math.Log(high/low)
	}
	step := niceStep(top)
	ceiling := step * math.Max(1, math.Ceil(top/step))
	for v := 0.0; v <= ceiling+step/2; v += step {
		y.ticks = append(y.ticks, v)
	}
	y.place = func(v float64) float64 { return plotBottom - (plotBottom-plotTop)*v/ceiling }
	return x, y
}

// niceStep divides 0 to top into about five steps of 1, 2 or 5 times a power of ten.
func niceStep(top float64) float64 {
	if top <= 0 {
		return 1
	}
	step := math.Pow(10, math.Floor(math.Log10(top/5)))
	for _, m := range []float64{1, 2, 5, 10} {
		if step*m >= top/5 {
			return step * m
		}
	}
	return step * 10
}
