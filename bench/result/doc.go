// Package result holds what a benchmark found out and writes it down: as JSON for programs, as Markdown and SVG for people.
//
// A [Row] compares the product with its ceiling over several runs that took turns; a [Curve] shows how one figure grows.
// Start reading at row.go.
package result
