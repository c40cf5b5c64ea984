package main

import (
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// terminalSize returns columns and lines of the terminal that w is; ok is false where it is none.
func terminalSize(w io.Writer) (width, height int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return 0, 0, false
	}
	width, height, err := term.GetSize(int(f.Fd()))
	return width, height, err == nil && width > 0 && height > 0
}

// cutLines cuts each line to the width, so that a long one does not take the place of two.
func cutLines(text string, width int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line, ended := strings.CutSuffix(line, "\n")
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:max(0, width-1)]) + "…"
		}
		b.WriteString(line)
		if ended {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// screenFrame returns what redraws a screen with the text in place: nothing is cleared before it is written again, so it
// does not flicker, and what is left of the frame before is cleared behind each line and below the last one. What passes the
// size is left out.
func screenFrame(text string, width, height int) string {
	var b strings.Builder
	b.WriteString("\x1b[H")
	n := 0
	for line := range strings.Lines(cutLines(text, width)) {
		if n++; n >= height { // the cursor stays on a line of its own
			break
		}
		b.WriteString(strings.TrimSuffix(line, "\n"))
		b.WriteString("\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	return b.String()
}

// recentLines keeps the newest lines of a log whose terminal is taken by a table.
type recentLines struct {
	mu    sync.Mutex
	lines []string // oldest first
}

const recentLimit = 50

// Write takes whole lines, one or more, as slog's handlers write them.
func (r *recentLines) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(string(p)) {
		r.lines = append(r.lines, strings.TrimSuffix(line, "\n"))
	}
	if over := len(r.lines) - recentLimit; over > 0 {
		r.lines = append(r.lines[:0], r.lines[over:]...)
	}
	return len(p), nil
}

// last returns up to n of the newest lines, each ended.
func (r *recentLines) last(n int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, line := range r.lines[max(0, len(r.lines)-n):] {
		b.WriteString(line + "\n")
	}
	return b.String()
}
