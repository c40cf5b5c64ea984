//go:build cases

package integration

import (
	"testing"
	"time"
)

// The whole of it: 10,000 random histories. It is meant to run with the race detector.
func TestHistories_TenThousand(t *testing.T) {
	const histories = 10_000
	begun := time.Now()
	did := playHistories(t, 0, func(n int) bool {
		if n > 0 && n%500 == 0 {
			t.Logf("%d of %d histories begun after %v", n, histories, time.Since(begun).Round(time.Second))
		}
		return n < histories
	})
	t.Logf("%s; %v", did.String(), time.Since(begun).Round(time.Second))
	if did.histories != histories {
		t.Errorf("%d histories ran, want %d", did.histories, histories)
	}
}
