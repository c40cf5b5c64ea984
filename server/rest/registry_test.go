package rest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/server"
)

// registry answers as registration would.
type registry struct{ list []load.Registration }

func (r registry) Registrations() []load.Registration { return r.list }

func (r registry) Register(w load.Worker) (load.Worker, error) {
	if w.ID == "configured" {
		return load.Worker{}, fmt.Errorf("worker %s: %w", w.ID, load.ErrConfigured)
	}
	return w, nil
}

func (r registry) Deregister(id string) error {
	if id == "nobody" {
		return fmt.Errorf("worker %s: %w", id, load.ErrUnknownWorker)
	}
	return nil
}

type noReports struct{}

func (noReports) Apply(*load.Stream, *load.Report) error { return load.ErrUnknownWorker }
func (noReports) Release(*load.Stream)                   {}

// The file describes the endpoints of the gateway too: this asks the real server, with everything told and nothing.
func TestOpenAPI_DescribesTheRegistry(t *testing.T) {
	check := described(t)
	var list []load.Registration
	for state := load.RegistrationPending; state <= load.RegistrationNotNeeded; state++ {
		list = append(list, load.Registration{Worker: load.Worker{ID: "w", URL: "http://w:80"}, Source: "config", State: state})
	}
	for role := load.RoleRegular; role <= load.RoleDecode; role++ {
		list = append(list, load.Registration{
			Worker: *known("w", 2).Worker, Source: "api", State: load.RegistrationRefused, Reason: "HTTP 403", LastHTTPStatus: 403,
		})
		list[len(list)-1].Worker.Role = role
	}
	f := newFleet()
	base := serve(t, server.Options{Ingest: noReports{}, Registry: registry{list}, Snapshots: f, REST: newHandler(t, f)})

	for _, tt := range []struct {
		method, path, body string
		status             int
		schema             string
	}{
		{"GET", "/v1/load_monitor/workers", "", 200, "ListWorkersResponse"},
		{"POST", "/v1/load_monitor/workers", `{"id":"w","url":"http://w:80","role":"decode","models":["m"],"zone":"z","expected_ranks":8}`, 200, "RegisterWorkerResponse"},
		{"POST", "/v1/load_monitor/workers", `{"url":"http://w:80"}`, 200, "RegisterWorkerResponse"},
		{"POST", "/v1/load_monitor/workers", `{"id":"configured","url":"http://w:80"}`, 409, "Status"},
		{"POST", "/v1/load_monitor/workers", `{"url":1}`, 400, "Status"},
		{"DELETE", "/v1/load_monitor/workers/w", "", 200, "DeregisterWorkerResponse"},
		{"DELETE", "/v1/load_monitor/workers/nobody", "", 404, "Status"},
		{"PUT", "/v1/load_monitor/workers", "", 405, "Status"},
		{"GET", SnapshotPath, "", 200, "Snapshot"},
		{"POST", SnapshotPath, "", 405, "Status"},
	} {
		req, err := http.NewRequest(tt.method, base+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != tt.status {
			t.Errorf("%s %s: %d %s, want %d", tt.method, tt.path, resp.StatusCode, text, tt.status)
		}
		if err := check(tt.schema, string(text)); err != nil {
			t.Errorf("%s %s: %s is no %s: %v", tt.method, tt.path, text, tt.schema, err)
		}
		if strings.HasPrefix(tt.body, `{"id":"w"`) {
			if err := check("WorkerSpec", tt.body); err != nil {
				t.Errorf("request %s: %v", tt.body, err)
			}
		}
	}
}

// serve runs a server on a free port of loopback until the test ends and returns its base URL.
func serve(t *testing.T, o server.Options) string {
	t.Helper()
	var err error
	if o.HTTPListener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if o.GRPCListener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	s, err := server.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + o.HTTPListener.Addr().String()
}
