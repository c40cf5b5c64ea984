package result

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The lines of a Markdown file between which Document writes.
const (
	documentBegin = "<!-- bench: begin. What stands here is written by make bench. -->\n"
	documentEnd   = "<!-- bench: end -->\n"
)

// Document writes the table of results and the plots into the marked part of a Markdown file. The pictures go into a folder
// beside it that has the file's name.
func (r *Report) Document(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("document the results: %w", err)
	}
	before, rest, ok := strings.Cut(string(text), documentBegin)
	_, after, ok2 := strings.Cut(rest, documentEnd)
	if !ok || !ok2 {
		return fmt.Errorf("document the results: %s lacks the lines %q and %q", file, strings.TrimSpace(documentBegin), strings.TrimSpace(documentEnd))
	}
	folder := strings.TrimSuffix(file, filepath.Ext(file))
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return fmt.Errorf("document the results: %w", err)
	}
	var b strings.Builder
	b.WriteString(before + documentBegin + "\n" + r.header() + "\n" + r.Table() + "\n")
	if len(r.Sizes) > 0 {
		b.WriteString(r.SizeTable() + "\n")
	}
	for i := range r.Curves {
		c := &r.Curves[i]
		picture := c.ID + ".svg"
		if err := os.WriteFile(filepath.Join(folder, picture), []byte(c.SVG()), 0o666); err != nil {
			return fmt.Errorf("document the results: %w", err)
		}
		fmt.Fprintf(&b, "![%s](%s/%s)\n\n", c.Title, filepath.Base(folder), picture)
		for _, n := range c.Notes {
			fmt.Fprintf(&b, "%s\n", n)
		}
		b.WriteString("\n")
	}
	b.WriteString(documentEnd + after)
	if err := os.WriteFile(file, []byte(b.String()), 0o666); err != nil {
		return fmt.Errorf("document the results: %w", err)
	}
	return nil
}
