package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewaypb "github.com/loadmonitor/loadmonitor/gen/gateway/loadmonitor/v1"
	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

const jsonType = "application/json"

// newGateway serves RegistryService as JSON over HTTP, in process: the generated handlers call the service directly. A
// worker whose id has a slash can be deregistered over gRPC only, because the path holds the id as one segment.
func newGateway(s loadmonitorpb.RegistryServiceServer) (http.Handler, error) {
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, registryJSON{}),
		runtime.WithErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, err error) {
			st := status.Convert(err)
			refuse(w, httpStatus(st.Code()), st.Code(), st.Message())
		}),
		runtime.WithRoutingErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, httpStatus int) {
			if httpStatus == http.StatusMethodNotAllowed {
				refuse(w, httpStatus, codes.Unimplemented, "method is not allowed here")
				return
			}
			refuse(w, http.StatusNotFound, codes.NotFound, "no such path")
		}),
		// Headers of a request must not turn it into another one.
		runtime.WithDisablePathLengthFallback(),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithIncomingHeaderMatcher(func(string) (string, bool) { return "", false }),
	)
	if err := gatewaypb.RegisterRegistryServiceHandlerServer(context.Background(), mux, s); err != nil {
		return nil, err
	}
	return headAsGet(mux), nil
}

// headAsGet lets HEAD find what GET finds; net/http leaves the body out.
func headAsGet(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			r = r.Clone(r.Context())
			r.Method = http.MethodGet
		}
		h.ServeHTTP(w, r)
	})
}

// httpStatus maps as the gateway does, except that a request which contradicts the configuration is a conflict.
func httpStatus(c codes.Code) int {
	if c == codes.FailedPrecondition {
		return http.StatusConflict
	}
	return runtime.HTTPStatusFromCode(c)
}

// refuse answers with an error: the gRPC code's number and a message.
func refuse(w http.ResponseWriter, httpStatus int, code codes.Code, message string) {
	body, err := json.Marshal(struct {
		Code    codes.Code `json:"code"`
		Message string     `json:"message"`
		Details []any      `json:"details"`
	}{code, message, []any{}})
	if err != nil {
		http.Error(w, message, httpStatus)
		return
	}
	w.Header().Set("Content-Type", jsonType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(httpStatus)
	_, _ = w.Write(body) // a peer that left does not need it
}

// bodyError answers a request whose body could not be read.
func bodyError(w http.ResponseWriter, err error) {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		refuse(w, http.StatusRequestEntityTooLarge, codes.ResourceExhausted, "request body is too large")
	case isTimeout(err):
		refuse(w, http.StatusRequestTimeout, codes.DeadlineExceeded, "request body did not arrive in time")
	default:
		refuse(w, http.StatusBadRequest, codes.InvalidArgument, "request body cannot be read")
	}
}
