package registration

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// maxTokenBytes bounds a token file; engines' keys are far shorter, and longer headers would be refused.
const maxTokenBytes = 4 << 10

// readToken reads a bearer token, anew on each use so that a rotated one takes effect. The space around it is dropped.
// No error holds anything of the content (rule N1).
func readToken(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", tokenError(path, err)
	}
	if !info.Mode().IsRegular() {
		// Opening a pipe could block, and it could be read once only.
		return "", fmt.Errorf("token file %s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", tokenError(path, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxTokenBytes+1))
	if err != nil {
		return "", tokenError(path, err)
	}
	if len(data) > maxTokenBytes {
		return "", fmt.Errorf("token file %s has more than %d bytes: it must hold one token", path, maxTokenBytes)
	}
	token := strings.TrimSpace(string(data))
	if token == "" {
		return "", fmt.Errorf("token file %s is empty: put the engine's admin API key there", path)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("token file %s holds more than one word, or a character that no header can carry", path)
	}
	return token, nil
}

func tokenError(path string, err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("token file %s: %w", path, err)
}
