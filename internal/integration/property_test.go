package integration

import (
	"flag"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
)

var (
	seedFlag   = flag.Uint64("seed", 0, "play the history of this seed only; 0: new ones")
	repeatFlag = flag.Int("repeat", 1, "how often to play the history of -seed: goroutines interleave differently each time, and what follows from that differs")
)

// Any interleaving of reports, expiries, removals, slow watchers, filters and resumes leaves each view equal to
// GetSnapshot at the same version.
func TestHistories_ViewsEqualSnapshots(t *testing.T) {
	if *seedFlag != 0 {
		did := playHistories(t, *seedFlag, func(n int) bool { return n < *repeatFlag })
		t.Log(did.String())
		return
	}
	const atLeast = 50
	begun := time.Now()
	did := playHistories(t, 0, func(n int) bool { return n < atLeast || time.Since(begun) < 8*time.Second })
	t.Log(did.String())
	if did.histories < atLeast {
		t.Errorf("%d histories ran, want at least %d", did.histories, atLeast)
	}
}

// playHistories plays one history after the other on each CPU as long as more says so, given how many have begun. A seed
// of 0 draws one for each.
func playHistories(t *testing.T, seed uint64, more func(begun int) bool) tally {
	var mu sync.Mutex
	var did tally
	begun := 0
	next := func() bool {
		mu.Lock()
		defer mu.Unlock()
		if t.Failed() || !more(begun) {
			return false
		}
		begun++
		return true
	}
	t.Run("play", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("cpu", func(t *testing.T) {
				t.Parallel()
				for next() {
					s := seed
					if s == 0 {
						s = rand.Uint64()
					}
					one := runHistory(t, s)
					mu.Lock()
					did.add(one)
					mu.Unlock()
				}
			})
		}
	})
	return did
}
