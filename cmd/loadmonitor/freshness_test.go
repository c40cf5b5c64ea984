package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// snapshotOf returns a snapshot with a worker for each freshness, named w00, w01 and so on.
func snapshotOf(all ...load.Freshness) *load.Snapshot {
	var entries []*load.Entry
	for i, f := range all {
		entries = append(entries, &load.Entry{WorkerStatus: &load.WorkerStatus{
			Worker: &load.Worker{ID: fmt.Sprintf("w%02d", i)}, Handle: uint32(i + 1), Freshness: f, Reason: "because",
		}})
	}
	return &load.Snapshot{Workers: load.NewTable(entries)}
}

func bare(log *strings.Builder) *slog.Logger {
	return slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// Case K8: one line when an episode begins and one when it ends, however many versions lie between.
func TestFreshnessLog_OneLinePerEpisode(t *testing.T) {
	var log strings.Builder
	l := &freshnessLog{log: bare(&log), trouble: map[string]*trouble{}}
	for _, s := range []*load.Snapshot{
		snapshotOf(load.Missing, load.Missing), snapshotOf(load.Fresh, load.Fresh),
		snapshotOf(load.Fresh, load.Stale), snapshotOf(load.Fresh, load.Stale), snapshotOf(load.Fresh, load.Unreachable),
		snapshotOf(load.Fresh, load.Fresh), snapshotOf(load.Fresh, load.Fresh),
		snapshotOf(load.Fresh, load.Incomplete), snapshotOf(load.Fresh, load.Fresh), // its ranks report one after the other
		snapshotOf(load.Incomplete, load.Fresh), snapshotOf(load.Incomplete, load.Fresh), snapshotOf(), snapshotOf(load.Fresh),
	} {
		l.see(s)
	}
	want := `level=WARN msg="worker is not fresh" worker=w01 freshness=stale reason=because
level=WARN msg="worker is not fresh" worker=w01 freshness=unreachable reason=because
level=INFO msg="worker is fresh again" worker=w01
level=WARN msg="worker is not fresh" worker=w00 freshness=incomplete reason=because
`
	if log.String() != want {
		t.Errorf("logged:\n%swant:\n%s", &log, want)
	}
}

func TestFreshnessLog_CountsWhatIsTooMuch(t *testing.T) {
	var log strings.Builder
	l := &freshnessLog{log: bare(&log), trouble: map[string]*trouble{}}
	all := make([]load.Freshness, 30)
	for i := range all {
		all[i] = load.Stale
	}
	all[29] = load.Incomplete
	l.trouble["w29"] = &trouble{freshness: load.Stale}
	l.see(snapshotOf(all...))
	if n := strings.Count(log.String(), "\n"); n != linesPerLook+1 || !strings.HasSuffix(log.String(), `msg="more workers changed" stale=9 incomplete=1`+"\n") {
		t.Errorf("%d lines:\n%s", n, &log)
	}
}

func TestFollowFreshness_BoundsTheLinesOfASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		stale, fresh := make([]load.Freshness, 100), make([]load.Freshness, 100)
		for i := range stale {
			stale[i], fresh[i] = load.Stale, load.Fresh
		}
		versions := []*load.Snapshot{snapshotOf(fresh...), snapshotOf(stale...)}
		superseded := make(chan struct{})
		close(superseded)
		n := 0
		current := func() *load.Publication { // every look finds all of them changed
			n++
			return &load.Publication{Snapshot: versions[n%2], Next: superseded}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second-time.Millisecond)
		defer cancel()
		followFreshness(ctx, bare(&log), current)
		if lines := strings.Count(log.String(), "\n"); lines != 10*(linesPerLook+1) {
			t.Errorf("%d lines in 10 s", lines)
		}
	})
}
