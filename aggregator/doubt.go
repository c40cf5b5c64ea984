package aggregator

// Doubts are what reports, or their absence, say against what registration knows of a worker. They are collected under the
// lock and told outside it.

func (a *Aggregator) doubtLocked(w *worker) {
	if a.options.Doubt != nil {
		a.doubts = append(a.doubts, w.spec.ID)
	}
}

// takeDoubtsLocked returns the doubts since it was last called.
func (a *Aggregator) takeDoubtsLocked() []string {
	doubts := a.doubts
	a.doubts = nil
	return doubts
}

func (a *Aggregator) tellDoubts(doubts []string) {
	for _, id := range doubts {
		a.options.Doubt(id)
	}
}
