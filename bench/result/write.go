package result

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Write writes NAME.json, NAME.md and one NAME-CURVE.svg for each curve into a folder, and makes it if it is not there.
func (r *Report) Write(folder, name string) error {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	plot := func(c *Curve) string { return name + "-" + c.ID + ".svg" }
	files := map[string][]byte{name + ".json": append(text, '\n'), name + ".md": []byte(r.Markdown(plot))}
	for i := range r.Curves {
		files[plot(&r.Curves[i])] = []byte(r.Curves[i].SVG())
	}
	for file, content := range files {
		if err := os.WriteFile(filepath.Join(folder, file), content, 0o666); err != nil {
			return fmt.Errorf("write results: %w", err)
		}
	}
	return nil
}

// Read reads a report that Write wrote.
func Read(file string) (*Report, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	r := new(Report)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("read results %s: %w", file, err)
	}
	return r, nil
}
