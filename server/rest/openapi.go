package rest

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strconv"

	"github.com/loadmonitor/loadmonitor/gen/openapi"
)

// serveOpenAPI answers with the description of the HTTP API that this program was built with.
func (h *Handler) serveOpenAPI(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("ETag", `"`+h.openAPITag+`"`)
	header.Set("Cache-Control", "no-cache")
	if matches(r, h.openAPITag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	header.Set("Content-Type", "application/json")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Length", strconv.Itoa(len(openapi.Document)))
	if r.Method != http.MethodHead {
		_, _ = io.WriteString(w, openapi.Document) // a reader who left does not need it
	}
}

// openAPITag names the content of the file.
func openAPITag() string {
	sum := sha256.Sum256([]byte(openapi.Document))
	return hex.EncodeToString(sum[:16])
}
