package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/loadmonitor/loadmonitor/load"
)

func TestStreamCodes_EveryRefusalIsDecided(t *testing.T) {
	for _, r := range load.Refusals() {
		if _, ok := streamCodes[r]; !ok {
			t.Errorf("%s (%v) has no code: decide it in errors.go", r.Label, r)
		}
	}
	for reason, code := range streamCodes {
		if label, _ := reasonOf(reason); label == "other" {
			t.Errorf("%v has no label", reason)
		}
		if code == codes.OK && !errors.As(reason, new(*load.Refusal)) {
			t.Errorf("%v would end a stream with OK", reason)
		}
	}
}

// How the engine goes on depends on the code with which its stream ends.
func TestStreamStatus_SaysWhatTheEngineMustDo(t *testing.T) {
	cases := map[error]codes.Code{
		load.ErrUnknownWorker:    codes.InvalidArgument,
		load.ErrOriginConflict:   codes.InvalidArgument,
		load.ErrRoleMismatch:     codes.InvalidArgument,
		load.ErrIdentityChanged:  codes.InvalidArgument,
		load.ErrRetiredSource:    codes.InvalidArgument,
		load.ErrSourceSuperseded: codes.Aborted,
		load.ErrStreamSuperseded: codes.Aborted,
		load.ErrWorkerRemoved:    codes.NotFound,
		load.ErrNotReady:         codes.Unavailable,
		load.ErrShuttingDown:     codes.Unavailable,
		load.ErrTooManyStreams:   codes.ResourceExhausted,
		errors.New("unforeseen"): codes.Internal,
	}
	for reason, want := range cases {
		err := fmt.Errorf("worker w1: %w", reason)
		st := status.Convert(streamStatus(err))
		if st.Code() != want || !strings.Contains(st.Message(), reason.Error()) {
			t.Errorf("%v ends a stream with %v: %s; want %v with the reason", reason, st.Code(), st.Message(), want)
		}
	}
}

func TestEndsStream_ValuesDoNot(t *testing.T) {
	for _, r := range []error{
		load.ErrSequenceOld, load.ErrSequenceRange, load.ErrSequenceJump, load.ErrStatus, load.ErrNoRanks, load.ErrTooManyRanks,
		load.ErrRankRange, load.ErrDuplicateRank, load.ErrNegative, load.ErrNotFinite,
	} {
		if endsStream(fmt.Errorf("rank 3: %w", r)) {
			t.Errorf("%v ends the stream", r)
		}
	}
}

func TestStatusText_IsBounded(t *testing.T) {
	st := status.Convert(streamStatus(fmt.Errorf("%s: %w", strings.Repeat("é", 5000), load.ErrUnknownWorker)))
	if len(st.Message()) > maxStatusBytes {
		t.Errorf("message has %d bytes", len(st.Message()))
	}
}

func TestBounded_CutsBetweenCharacters(t *testing.T) {
	cases := []struct {
		name, in string
		limit    int
		want     string
	}{
		{"short", "abc", 4, "abc"},
		{"exact", "abcd", 4, "abcd"},
		{"ascii", "abcdef", 4, "abcd"},
		{"two bytes on the cut", "abcé", 4, "abc"},
		{"four bytes on the cut", "a😀", 4, "a"},
		{"whole character before the cut", "aéb", 3, "aé"},
		{"not valid", "a\xffb", 4, "ab"},
		{"not valid and long", "\xff\xff\xffabc", 4, "a"},
		{"empty", "", 4, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := bounded(c.in, c.limit); got != c.want {
				t.Errorf("bounded(%q, %d) is %q, want %q", c.in, c.limit, got, c.want)
			}
		})
	}
}
