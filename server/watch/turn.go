package watch

import "time"

// step is what a watcher does next.
type step uint8

const (
	stepIdle   step = iota // wait for a newer publication
	stepSleep              // wait until a time, then look again
	stepEither             // wait for whichever comes first
	stepLook               // see what the publication holds for the view, and send it
	stepBeat               // answer the publisher's beat
)

// turn decides when one watcher does what. It sees versions and beats go by and weighs two wishes: an update no sooner
// than the watcher asked for, and a heartbeat for every beat in which nothing else was sent (rule W4). It never reads a
// clock.
type turn struct {
	// Immutable.
	asked time.Duration // shortest time between two updates
	beats time.Duration // time between two beats

	looked  uint64    // the version that was last compared with the view
	updated time.Time // when the last update with content went out

	beat   uint64    // the last beat that was answered
	beatAt time.Time // when it was
	sent   bool      // something was sent after that
}

// next returns what to do about the newest publication, and for stepSleep and stepEither until when to wait.
func (t *turn) next(now time.Time, version, beat uint64) (step, time.Time) {
	newer, beaten := version != t.looked, beat != t.beat
	updateAt := t.updated.Add(t.asked)
	switch {
	case newer && !now.Before(updateAt):
		return stepLook, time.Time{}
	case beaten:
		return stepBeat, time.Time{}
	case !newer:
		return stepIdle, time.Time{}
	}
	// Waking for every publication only to see that it is still too early is what the interval is there to avoid. But
	// the next beat must not be missed: sleep until it is expected, and from then on listen.
	if expected := t.beatAt.Add(t.beats); now.Before(expected) {
		if expected.Before(updateAt) {
			return stepSleep, expected
		}
		return stepSleep, updateAt
	}
	return stepEither, updateAt
}

// mustAnswer reports whether the beat wants a frame, because nothing was sent since the one before.
func (t *turn) mustAnswer(beat uint64) bool { return beat != t.beat && !t.sent }

// lookedAt notes that the version was compared with the view; content says that an update went out for it, sent that
// anything did.
func (t *turn) lookedAt(now time.Time, version, beat uint64, content, sent bool) {
	t.looked = version
	if content {
		t.updated = now
	}
	t.answered(now, beat, sent)
}

// answered notes that the beat was seen, and whether anything was sent on the occasion.
func (t *turn) answered(now time.Time, beat uint64, sent bool) {
	t.sent = t.sent || sent
	if beat != t.beat {
		t.beat, t.beatAt, t.sent = beat, now, false
	}
}
