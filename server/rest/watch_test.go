package rest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// line is what a script reads of one line of a watch.
type line struct {
	Heartbeat bool
	Epoch     string
	Version   uint64
	Workers   []json.RawMessage
	Error     *struct {
		Code    int
		Message string
	}
	at time.Duration // since the watch began
}

// watcher reads a watch; lines arrives closed when the body ended.
type watcher struct {
	resp  *http.Response
	lines chan line
	leave func()
}

func watch(t *testing.T, p *pipes, query string) *watcher {
	t.Helper()
	start := time.Now()
	resp, err := p.client(t).Get("http://monitor" + WatchPath + query)
	if err != nil {
		t.Fatal(err)
	}
	w := &watcher{resp: resp, lines: make(chan line, 10_000)}
	w.leave = func() { resp.Body.Close() }
	go func() {
		defer close(w.lines)
		in := bufio.NewReader(resp.Body)
		for {
			text, err := in.ReadBytes('\n')
			if err != nil {
				return
			}
			l := line{at: time.Since(start)}
			if err := json.Unmarshal(text, &l); err != nil {
				t.Errorf("line %q: %v", text, err)
			}
			w.lines <- l
		}
	}()
	t.Cleanup(w.leave)
	return w
}

// seen returns the lines that have arrived.
func (w *watcher) seen() []line {
	synctest.Wait()
	var out []line
	for {
		select {
		case l, open := <-w.lines:
			if !open {
				return out
			}
			out = append(out, l)
		default:
			return out
		}
	}
}

func TestWatch_FirstLineAtOnceEvenOfAnEmptyFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes(t, newHandler(t, newFleet()))
		w := watch(t, p, "")
		if w.resp.StatusCode != 200 || w.resp.Header.Get("Content-Type") != "application/x-ndjson" {
			t.Fatalf("status %d, headers %v", w.resp.StatusCode, w.resp.Header)
		}
		got := w.seen()
		if len(got) != 1 || got[0].Version != 1 || got[0].Workers == nil || got[0].at != 0 {
			t.Errorf("got %+v, want version 1 at once", got)
		}
	})
}

func TestWatch_LineIsTheSnapshotBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, newFleet(known("w", 2)))
		p := newPipes(t, h)
		resp, err := p.client(t).Get("http://monitor" + WatchPath)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		got, err := bufio.NewReader(resp.Body).ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		if want := get(h, "GET", SnapshotPath).Body.Bytes(); !bytes.Equal(got, want) {
			t.Errorf("line %s\nbody %s", got, want)
		}
	})
}

// Rules W2 and W3: changes arrive at once when quiet, conflated to the newest under load.
func TestWatch_ConflatesToNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := newPipes(t, newHandler(t, f))
		w := watch(t, p, "")
		w.seen()
		time.Sleep(300 * time.Millisecond)
		f.publish()
		if got := w.seen(); len(got) != 1 || got[0].Version != 2 || got[0].at != 300*time.Millisecond {
			t.Fatalf("after a quiet time: %+v, want version 2 at once", got)
		}
		for range 200 { // one second
			f.publish()
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		got := w.seen()
		if len(got) < 9 || len(got) > 11 {
			t.Errorf("%d lines in a second, want about one each 100 ms", len(got))
		}
		for i, l := range got {
			if i > 0 && (l.Version <= got[i-1].Version || l.at-got[i-1].at < 100*time.Millisecond) {
				t.Errorf("version %d at %v after version %d at %v", l.Version, l.at, got[i-1].Version, got[i-1].at)
			}
		}
		if last := got[len(got)-1]; last.Version != 202 {
			t.Errorf("ends on version %d, want the newest, 202", last.Version)
		}
	})
}

// Rule W4: heartbeats are the publisher's, also while a long interval holds the next snapshot back.
func TestWatch_HeartbeatsAreThePublishers(t *testing.T) {
	for _, query := range []string{"", "?min_interval_ms=60000"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet()
			p := newPipes(t, newHandler(t, f))
			w := watch(t, p, query)
			w.seen()
			for range 3 {
				time.Sleep(time.Second)
				f.beat()
				time.Sleep(100 * time.Millisecond)
				if query != "" {
					f.publish()
				}
				if got := w.seen(); len(got) != 1 || !got[0].Heartbeat || got[0].Version != 1 || got[0].Epoch != "e1" {
					t.Errorf("%s: got %+v, want one heartbeat of version 1", query, got)
				}
			}
			time.Sleep(10 * time.Second)
			if got := w.seen(); len(got) != 0 {
				t.Errorf("%s: got %+v from a stuck publisher, want silence", query, got)
			}
		})
	}
}

func TestWatch_MinInterval(t *testing.T) {
	for query, want := range map[string]time.Duration{
		"": 100 * time.Millisecond, "?min_interval_ms=0": 100 * time.Millisecond, "?min_interval_ms=20": 100 * time.Millisecond,
		"?min_interval_ms=750": 750 * time.Millisecond, "?min_interval_ms=4294967295": time.Minute,
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet()
			p := newPipes(t, newHandler(t, f))
			w := watch(t, p, query)
			w.seen()
			f.publish()
			time.Sleep(2 * time.Minute)
			if got := w.seen(); len(got) != 1 || got[0].at < want || got[0].at > want+100*time.Millisecond {
				t.Errorf("%q: got %+v, want one line after %v", query, got, want)
			}
		})
	}
}

func TestWatch_RefusesWhatItDoesNotUnderstand(t *testing.T) {
	h := newHandler(t, newFleet())
	for query, want := range map[string]string{
		"?min_interval_ms=-1": "-1", "?min_interval_ms=1s": "1s", "?min_interval_ms=4294967296": "4294967296", "?min_interval_ms=1.5": "1.5",
		"?filter.ids=w": "filter.ids",
	} {
		w := get(h, "GET", WatchPath+query)
		if w.Code != 400 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s, want 400 naming %s", query, w.Code, w.Body, want)
		}
	}
}

// Case J3: net/http does not notice that a reader left while a request body is unread, so there must be none.
func TestWatch_RefusesABody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes(t, newHandler(t, newFleet()))
		r, err := http.NewRequest("GET", "http://monitor"+WatchPath, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := p.client(t).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 400 {
			t.Errorf("status %d, want 400", resp.StatusCode)
		}
	})
}

// Case J3: watchers who leave leave nothing behind, although the fleet is quiet. The bubble ends only when no goroutine
// is left.
func TestWatch_ReaderWhoLeavesEndsTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, newFleet(known("w", 1)))
		p := newPipes(t, h)
		for range 10 {
			var all []*watcher
			for range 20 {
				all = append(all, watch(t, p, ""))
			}
			synctest.Wait()
			if n := h.watchers.Load(); n != 20 {
				t.Fatalf("%d watchers, want 20", n)
			}
			time.Sleep(time.Second)
			for _, w := range all {
				w.leave()
			}
			synctest.Wait()
			if n := h.watchers.Load(); n != 0 {
				t.Fatalf("%d watchers after all left", n)
			}
		}
	})
}

// Rule LIFE2.
func TestWatch_TooManyAreRefusedWithAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, newFleet(), func(o *Options) { o.MaxWatchers = 2 })
		p := newPipes(t, h)
		first := watch(t, p, "")
		watch(t, p, "")
		third := watch(t, p, "")
		if third.resp.StatusCode != 503 || third.resp.Header.Get("Retry-After") == "" {
			t.Fatalf("status %d, headers %v, want 503 and Retry-After", third.resp.StatusCode, third.resp.Header)
		}
		if h.refused.Load() != 1 {
			t.Errorf("%d refused, want 1", h.refused.Load())
		}
		first.leave()
		synctest.Wait()
		if again := watch(t, p, ""); again.resp.StatusCode != 200 {
			t.Errorf("status %d after one left, want 200", again.resp.StatusCode)
		}
	})
}

// Rule W3: a reader who takes nothing is ended; one who is slow but takes something is not, and skips to the newest.
func TestWatch_StuckReaderIsEndedSlowOneIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var entries []*load.Entry
		for i := range 100 {
			entries = append(entries, known(workerID(i), 8))
		}
		f := newFleet(entries...)
		h := newHandler(t, f)
		p := newPipes(t, h)

		stuck, slow := p.dial(t), p.dial(t)
		for _, conn := range []io.Writer{stuck, slow} {
			io.WriteString(conn, "GET "+WatchPath+" HTTP/1.1\r\nHost: x\r\n\r\n")
		}
		var taken bytes.Buffer
		for range 24 {
			time.Sleep(4 * time.Second)
			f.publish(entries...)
			if _, err := io.CopyN(&taken, slow, stallChunk); err != nil {
				t.Fatalf("slow reader: %v", err)
			}
		}
		versions := regexp.MustCompile(`"version":(\d+)`).FindAllSubmatch(taken.Bytes(), -1)
		if len(versions) < 2 || len(versions) > 4 || string(versions[0][1]) != "1" || string(versions[1][1]) == "2" {
			t.Errorf("slow reader saw the versions %q, want 1 and then what was newest", versions)
		}
		synctest.Wait()
		if h.watchers.Load() != 1 || h.stalled.Load() != 1 {
			t.Fatalf("%d watchers, %d stalled: want the slow one open and the stuck one ended", h.watchers.Load(), h.stalled.Load())
		}
		if _, err := io.Copy(io.Discard, stuck); err != nil {
			t.Errorf("stuck reader: %v, want the end", err)
		}
		slow.Close()
		synctest.Wait()
		if h.stalled.Load() != 1 {
			t.Errorf("a reader who left counts as stalled")
		}
	})
}

// Rule LIFE1: watchers are told, a stuck one does not hold the shutdown up, new ones are refused, the snapshot is served.
func TestShutdown_EndsWatchesWithAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var entries []*load.Entry
		for i := range 100 {
			entries = append(entries, known(workerID(i), 8))
		}
		h := newHandler(t, newFleet(entries...))
		p := newPipes(t, h)
		w := watch(t, p, "")
		w.seen()
		stuck := p.dial(t)
		io.WriteString(stuck, "GET "+WatchPath+" HTTP/1.1\r\nHost: x\r\n\r\n")
		synctest.Wait()

		h.Shutdown()
		h.Shutdown()
		got := w.seen()
		if len(got) != 1 || got[0].Error == nil || got[0].Error.Code != 14 || got[0].Error.Message != load.ErrShuttingDown.Error() {
			t.Errorf("got %+v, want the reason", got)
		}
		if _, open := <-w.lines; open {
			t.Error("the watch goes on")
		}
		time.Sleep(hurryLimit)
		synctest.Wait()
		if n := h.watchers.Load(); n != 0 {
			t.Errorf("%d watchers a second after the shutdown", n)
		}
		if h.stalled.Load() != 0 {
			t.Error("a watch that the shutdown ended counts as stalled")
		}
		if again := get(h, "GET", WatchPath); again.Code != 503 || !strings.Contains(again.Body.String(), `"code":14`) {
			t.Errorf("a new watch is answered with %d %s, want 503 and the reason", again.Code, again.Body)
		}
		if again := get(h, "GET", SnapshotPath); again.Code != 200 {
			t.Errorf("snapshot is answered with %d, want 200", again.Code)
		}
	})
}

// Rule W8: many watches of a large fleet get a longer interval.
func TestWatch_IntervalGrowsWithWhatIsSent(t *testing.T) {
	h := newHandler(t, newFleet())
	h.watchers.Store(64)
	for _, tt := range []struct {
		asked time.Duration
		size  int
		want  time.Duration
	}{
		{0, 1000, 100 * time.Millisecond},
		{0, 8 << 20, 2 * time.Second},
		{5 * time.Second, 8 << 20, 5 * time.Second},
		{0, 1 << 30, 256 * time.Second},
	} {
		if got := h.interval(tt.asked, tt.size); got != tt.want {
			t.Errorf("asked %v, %d bytes: %v, want %v", tt.asked, tt.size, got, tt.want)
		}
	}
}
