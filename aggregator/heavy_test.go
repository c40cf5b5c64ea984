//go:build cases

package aggregator

import "testing"

// Case A5 in full.
func TestHeavy_RemovedWorkersStayGone(t *testing.T) { removeWhileTheyReport(t, 1000) }
