package watch

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// refusal is an error with the status code that the caller of an RPC gets; the sentinel in its chain stays findable.
type refusal struct {
	code codes.Code
	err  error
}

func refuse(code codes.Code, format string, args ...any) error {
	return &refusal{code, fmt.Errorf(format, args...)}
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// GRPCStatus tells grpc the code and the text.
func (r *refusal) GRPCStatus() *status.Status { return status.New(r.code, r.err.Error()) }
