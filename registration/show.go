package registration

import (
	"strings"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

const (
	whileLeased = "the renewal failed: "
	afterLease  = "the lease ran out: "
)

// show makes a status the worker's: in the list, as its note, and in the log where it opens, worsens or closes an
// episode of trouble.
func (l *lease) show(s status) {
	if s.reason != "" {
		s.reason = strings.TrimPrefix(strings.TrimPrefix(s.reason, whileLeased), afterLease)
		switch {
		case !l.expires.IsZero():
			s.reason = whileLeased + s.reason
		case l.lost:
			s.reason = afterLease + s.reason
		}
	}
	noted := l.shown.reason
	l.mu.Lock()
	if s.http == 0 {
		s.http = l.shown.http // what the engine last said stays, with no answer to replace it
	}
	l.shown = s
	l.mu.Unlock()
	if s.reason != noted {
		l.registry.opts.Sink.SetNote(l.worker.ID, s.reason)
	}
	switch {
	case s.state == load.RegistrationLeased && l.announced != logSilent:
		l.announced = logSilent
		l.logger().Info("worker is registered again")
	case s.state == load.RegistrationRetrying && l.announced < logTrouble:
		l.announced = logTrouble
		l.logger().Warn("worker cannot be registered; trying again", "reason", s.reason)
	case s.state == load.RegistrationRefused && l.announced < logRefused:
		l.announced = logRefused
		l.logger().Warn("the engine refuses to report here", "reason", s.reason)
	}
}

// status returns what to show now. A lease that ran out while its renewal is under way is no lease.
func (l *lease) status() status {
	l.mu.Lock()
	s, expires := l.shown, l.expires
	l.mu.Unlock()
	if s.state == load.RegistrationLeased && !time.Now().Before(expires) {
		s.state = load.RegistrationRetrying
		s.reason = afterLease + "the engine has not answered the renewal yet"
	}
	return s
}
