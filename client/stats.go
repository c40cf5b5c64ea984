package client

import "sync/atomic"

// Stats counts what happened since New.
type Stats struct {
	Tries        uint64 // to open a stream, whatever came of it
	Resumes      uint64 // streams that went on from the held version
	FullPictures uint64 // updates that replaced everything
	Deltas       uint64 // updates that did not
	Violations   uint64 // streams dropped because the monitor broke the watch contract
	LinkLosses   uint64 // times that the link went down
}

type counters struct {
	tries, resumes, fullPictures, deltas, violations, linkLosses atomic.Uint64
}

// Stats returns the counts.
func (c *Client) Stats() Stats {
	return Stats{
		Tries:        c.count.tries.Load(),
		Resumes:      c.count.resumes.Load(),
		FullPictures: c.count.fullPictures.Load(),
		Deltas:       c.count.deltas.Load(),
		Violations:   c.count.violations.Load(),
		LinkLosses:   c.count.linkLosses.Load(),
	}
}

// update counts a completed update; held is what was held before it.
func (c *counters) update(out outcome, held *picture) {
	switch {
	case out.full:
		c.fullPictures.Add(1)
	case out.picture != held:
		c.deltas.Add(1)
	}
	if out.resumed {
		c.resumes.Add(1)
	}
}
