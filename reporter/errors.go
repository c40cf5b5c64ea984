package reporter

import "errors"

// Why a registration is refused. They are wrapped with the offender's name; find them with errors.Is.
var (
	// ErrInvalid: a field of the request is missing or out of range; the text names it.
	ErrInvalid = errors.New("registration is not valid")
	// ErrTargetOwned: another worker address holds a lease on this target.
	ErrTargetOwned = errors.New("target is owned by a different worker origin: retry after its lease has run out")
	// ErrTooManyTargets: the bound on targets is reached.
	ErrTooManyTargets = errors.New("too many targets: let a lease run out or raise the bound")
	// ErrNotRunning: Run has not been called yet, or the reporter is stopping.
	ErrNotRunning = errors.New("reporter is not running: try again")
)

// ErrAlreadyRunning: Run was called a second time.
var ErrAlreadyRunning = errors.New("reporter: Run was called before: a Reporter stands for one process life, make a new one")
