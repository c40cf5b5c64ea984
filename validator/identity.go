package validator

import (
	"fmt"
	"slices"

	"github.com/loadmonitor/loadmonitor/load"
)

// Identity reports whether a pushed claim is about this worker: the type must be the registered role, and the model is
// compared only where both sides name one (rule ID2). The origin was compared when the worker was looked up.
func Identity(w *load.Worker, c *load.Claim) error {
	if c.Role == load.RoleUnspecified {
		return fmt.Errorf("worker_type is unspecified, registered as %s: %w", w.Role, load.ErrRoleMismatch)
	}
	if c.Role != w.Role {
		return fmt.Errorf("worker_type is %s, registered as %s: %w", c.Role, w.Role, load.ErrRoleMismatch)
	}
	if c.Model != "" && len(w.Models) > 0 && !slices.Contains(w.Models, c.Model) {
		return fmt.Errorf("model is %q, registered as %q: %w", c.Model, w.Models, load.ErrModelMismatch)
	}
	return nil
}
