package load

// RegistrationState is how far the monitor got with an engine.
type RegistrationState uint8

const (
	RegistrationUnspecified RegistrationState = iota
	RegistrationPending                       // the first request has not been answered yet
	RegistrationLeased                        // the engine granted a lease that has not run out
	RegistrationRetrying                      // the last request failed and is tried again soon
	RegistrationRefused                       // the engine refused; tried again rarely, or when the worker changes
	RegistrationConflict                      // another worker has the same origin: neither is registered (rule ID3)
	RegistrationNotNeeded                     // the worker's transport needs no lease
)

// Registration is one worker as registration sees it.
type Registration struct {
	Worker         Worker
	Source         string // where the worker comes from: "config" or "api"
	State          RegistrationState
	Reason         string // why State is not RegistrationLeased
	LastHTTPStatus int    // of the engine's last answer; 0: none
	ProbeError     string // why the engine's newest /server_info could not be read; what was known before it stays
}
