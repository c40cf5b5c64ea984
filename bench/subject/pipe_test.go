package subject

import (
	"testing"
	"time"
)

func TestReadPipe_RefusesWhatIsNoFrame(t *testing.T) {
	for name, frame := range map[string][]byte{
		"empty":         nil,
		"half a head":   {1, 2, 3},
		"half an entry": make([]byte, pipeHead+entryHead-1),
		"short report":  append(make([]byte, pipeHead+8), 9, 0, 0, 0, 1),
	} {
		if err := ReadPipe(frame, 0, func(PipeEntry) {}); err == nil {
			t.Errorf("%s was read", name)
		}
	}
}

func TestReadPipe_TellsHowLongReportsLay(t *testing.T) {
	frame := []byte{10, 0, 0, 0, 0, 0, 0, 0 /* made */, 7, 0, 0, 0, 0, 0, 0, 0 /* came */, 2, 0, 0, 0, 'h', 'i', 0}
	n := 0
	err := ReadPipe(frame, 1, func(e PipeEntry) {
		n++
		if string(e.Report) != "hi" || e.Lay != 3*time.Microsecond {
			t.Errorf("read %q, which lay %v", e.Report, e.Lay)
		}
	})
	if err != nil || n != 1 {
		t.Errorf("read %d entries: %v", n, err)
	}
}
