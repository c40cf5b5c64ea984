package registration

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// Case N1: the token is read anew on each use and appears nowhere but in the request.
func TestLease_TokenIsReadAnewAndNeverShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "key")
		write := func(s string) {
			if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("  sentinel-old\n")
		var log bytes.Buffer
		e := &fakeEngine{key: "sentinel-old"}
		r, s, _ := oneEngine(t, e, Options{
			Static: []Spec{{ID: "w", URL: "w:1", Role: load.RoleRegular, Transport: load.TransportPush, TokenFile: path}},
			Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
		var shown strings.Builder
		look := func() load.Registration {
			synctest.Wait()
			reg := registration(t, r, "w")
			fmt.Fprintln(&shown, s.note("w"), reg)
			return reg
		}
		if reg := look(); reg.State != load.RegistrationLeased {
			t.Fatalf("%+v, want it leased with the token", reg)
		}
		e.mu.Lock()
		e.key = "sentinel-new"
		e.mu.Unlock()
		time.Sleep(6 * time.Second)
		if reg := look(); reg.State != load.RegistrationRefused || !strings.Contains(reg.Reason, path) {
			t.Errorf("%+v, want it refused with the file named", reg)
		}
		write("sentinel-new")
		time.Sleep(time.Minute)
		if reg := look(); reg.State != load.RegistrationLeased {
			t.Errorf("%+v, want it leased with the new token", reg)
		}
		for _, bad := range []string{"", "sentinel one two", "sentinel-\x01", strings.Repeat("sentinel", 1000)} {
			write(bad)
			before := len(e.seen())
			time.Sleep(10 * time.Second)
			if reg := look(); reg.State != load.RegistrationRetrying || !strings.Contains(reg.Reason, "token file "+path) {
				t.Errorf("%+v, want the token file named", reg)
			}
			if len(e.seen()) != before {
				t.Error("asked without a token")
			}
		}
		_ = os.Remove(path)
		time.Sleep(10 * time.Second)
		look()
		for _, m := range r.Metrics() {
			m.Collect(func(v float64, labels ...load.Label) { fmt.Fprintln(&shown, m.Name, m.Help, v, labels) })
		}
		if all := shown.String() + log.String(); strings.Contains(all, "sentinel") {
			t.Errorf("the token shows in\n%s", all)
		}
	})
}

func TestReadToken_RefusesWhatIsNoFile(t *testing.T) {
	if _, err := readToken(t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("directory: %v", err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readToken(pipe); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("pipe: %v", err)
	}
}
