package server

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

const workersPath = "/v1/load_monitor/workers"

func someWorker() load.Worker {
	return load.Worker{ID: "w1", URL: "http://127.0.0.5:30000", Origin: "127.0.0.5:30000", Role: load.RoleDecode,
		Models: []string{"m1"}, Zone: "z1", ExpectedRanks: 4, Transport: load.TransportPush, TransportReason: "push: configured"}
}

func TestRegistry_ListsOverBothWays(t *testing.T) {
	reg := &fakeRegistry{list: []load.Registration{
		{Worker: someWorker(), Source: "api", State: load.RegistrationLeased, LastHTTPStatus: 200, ProbeError: "connection refused"},
		{Worker: load.Worker{ID: "w2", URL: "http://127.0.0.6:1", Role: load.RoleRegular}, Source: "config",
			State: load.RegistrationNotNeeded, Reason: "transport is zmq"},
	}}
	r := start(t, Options{Registry: reg})
	got, err := loadmonitorpb.NewRegistryServiceClient(r.dial()).ListWorkers(t.Context(), &loadmonitorpb.ListWorkersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := loadmonitorpb.ListWorkersResponse_builder{Workers: []*loadmonitorpb.RegisteredWorker{
		loadmonitorpb.RegisteredWorker_builder{
			Spec: loadmonitorpb.WorkerSpec_builder{Id: "w1", Url: "http://127.0.0.5:30000", Role: loadmonitorpb.Role_ROLE_DECODE,
				Models: []string{"m1"}, Zone: "z1", ExpectedRanks: 4}.Build(),
			Source: "api", State: loadmonitorpb.RegistrationState_REGISTRATION_STATE_LEASED, LastHttpStatus: 200,
			Transport: loadmonitorpb.Transport_TRANSPORT_PUSH, TransportReason: "push: configured", ProbeError: "connection refused",
		}.Build(),
		loadmonitorpb.RegisteredWorker_builder{
			Spec:   loadmonitorpb.WorkerSpec_builder{Id: "w2", Url: "http://127.0.0.6:1", Role: loadmonitorpb.Role_ROLE_REGULAR}.Build(),
			Source: "config", State: loadmonitorpb.RegistrationState_REGISTRATION_STATE_NOT_NEEDED, Reason: "transport is zmq",
		}.Build(),
	}}.Build()
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Error(d)
	}

	resp, body := r.do(http.MethodGet, workersPath, nil)
	wantJSON := `{"workers":[` +
		`{"spec":{"id":"w1","url":"http://127.0.0.5:30000","role":"decode","models":["m1"],"zone":"z1","expected_ranks":4},` +
		`"source":"api","state":"leased","reason":"","last_http_status":200,` +
		`"transport":"push","transport_reason":"push: configured","probe_error":"connection refused"},` +
		`{"spec":{"id":"w2","url":"http://127.0.0.6:1","role":"plain","models":[],"zone":"","expected_ranks":0},` +
		`"source":"config","state":"not_needed","reason":"transport is zmq","last_http_status":0,` +
		`"transport":null,"transport_reason":"","probe_error":""}],"next_page_token":""}`
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != jsonType || body != wantJSON {
		t.Errorf("%s %s\n%s\nwant\n%s", resp.Status, resp.Header.Get("Content-Type"), body, wantJSON)
	}
	if resp, body := r.do(http.MethodHead, workersPath, nil); resp.StatusCode != 200 || body != "" {
		t.Errorf("HEAD: %s %q", resp.Status, body)
	}
}

// A list beyond the 4 MiB that stock clients accept comes in pages, over gRPC and as JSON. While workers come and go, among
// them the one that a token names, whoever stays stands in one page.
func TestRegistry_ListsInPages(t *testing.T) {
	const n = 20_000
	all := make([]load.Registration, n)
	for i := range all {
		w := someWorker()
		w.ID = fmt.Sprintf("w%05d", i)
		all[i] = load.Registration{Worker: w, Source: "api", State: load.RegistrationRetrying, Reason: strings.Repeat("r", 300)}
	}
	pages := map[string]func(r *running, token string) (ids []string, next string){
		"gRPC": func(r *running, token string) (ids []string, next string) {
			resp, err := loadmonitorpb.NewRegistryServiceClient(r.dial()).ListWorkers(t.Context(),
				loadmonitorpb.ListWorkersRequest_builder{PageToken: token}.Build())
			if err != nil {
				t.Fatal(err)
			}
			if size := proto.Size(resp); size > maxPageBytes {
				t.Errorf("a page has %d bytes", size)
			}
			for _, w := range resp.GetWorkers() {
				ids = append(ids, w.GetSpec().GetId())
			}
			return ids, resp.GetNextPageToken()
		},
		"JSON": func(r *running, token string) (ids []string, next string) {
			resp, body := r.do(http.MethodGet, workersPath+"?page_token="+token, nil)
			var page struct {
				Workers []registeredWorkerJSON `json:"workers"`
				Next    *string                `json:"next_page_token"`
			}
			if err := json.Unmarshal([]byte(body), &page); err != nil || resp.StatusCode != http.StatusOK || page.Next == nil {
				t.Fatalf("%s, %v", resp.Status, err)
			}
			for _, w := range page.Workers {
				ids = append(ids, w.Spec.ID)
			}
			return ids, *page.Next
		},
	}
	for name, page := range pages {
		t.Run(name, func(t *testing.T) {
			reg := &fakeRegistry{list: all}
			r := start(t, Options{Registry: reg})
			var got []string
			gone := make(map[string]bool)
			count := 0
			for token := ""; ; {
				ids, next := page(r, token)
				got = append(got, ids...)
				count++
				if token = next; token == "" {
					break
				}
				// The worker that the token names goes, and one comes that the pages so far have passed.
				last := ids[len(ids)-1]
				gone[last] = true
				reg.mu.Lock()
				left := slices.DeleteFunc(slices.Clone(reg.list), func(g load.Registration) bool { return g.Worker.ID == last })
				reg.list = append([]load.Registration{{Worker: load.Worker{ID: fmt.Sprintf("a%d", 9-count)}}}, left...)
				reg.mu.Unlock()
			}
			if count < 3 {
				t.Errorf("%d pages", count)
			}
			var want []string
			for _, g := range all {
				want = append(want, g.Worker.ID) // those that are gone were listed before
			}
			if d := cmp.Diff(want, got); d != "" || len(gone) != count-1 {
				t.Errorf("%d gone: %s", len(gone), d)
			}
		})
	}
}

func TestRegistry_RefusesForeignPageTokens(t *testing.T) {
	r := start(t, Options{Registry: &fakeRegistry{}})
	for _, token := range []string{"w1", "%", "AncwMQ"} {
		_, err := loadmonitorpb.NewRegistryServiceClient(r.dial()).ListWorkers(t.Context(), loadmonitorpb.ListWorkersRequest_builder{PageToken: token}.Build())
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "next_page_token") {
			t.Errorf("%q: %v", token, err)
		}
		if resp, body := r.do(http.MethodGet, workersPath+"?page_token="+url.QueryEscape(token), nil); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: %s %s", token, resp.Status, body)
		}
	}
}

// What was read can be sent back.
func TestRegistry_RegistersOverHTTP(t *testing.T) {
	reg := &fakeRegistry{register: func(w load.Worker) (load.Worker, error) {
		w.ID = orDefault(w.ID, "127.0.0.5:30000")
		return w, nil
	}}
	r := start(t, Options{Registry: reg})
	const spec = `{"id":"w1","url":"http://127.0.0.5:30000","role":"decode","models":["m1"],"zone":"z1","expected_ranks":4}`
	resp, body := r.do(http.MethodPost, workersPath, strings.NewReader(spec))
	if resp.StatusCode != 200 || body != `{"worker":`+spec+`}` {
		t.Errorf("%s %s", resp.Status, body)
	}
	want := someWorker()
	want.Origin, want.Transport, want.TransportReason = "", load.TransportUnspecified, "" // registration's business
	if d := cmp.Diff([]load.Worker{want}, reg.registered); d != "" {
		t.Error(d)
	}
	resp, body = r.do(http.MethodPost, workersPath, strings.NewReader(`{"url":"127.0.0.5:30000"}`))
	if want := `{"worker":{"id":"127.0.0.5:30000","url":"127.0.0.5:30000","role":"plain","models":[],"zone":"","expected_ranks":0}}`; resp.StatusCode != 200 || body != want {
		t.Errorf("%s %s", resp.Status, body)
	}
}

func TestRegistry_DeregistersOverHTTP(t *testing.T) {
	reg := &fakeRegistry{}
	r := start(t, Options{Registry: reg})
	for _, path := range []string{"/w1", "/127.0.0.5:30000", "/127.0.0.5%3A30001", "/[fd00::5]:30000"} {
		if resp, body := r.do(http.MethodDelete, workersPath+path, nil); resp.StatusCode != 200 || body != "{}" {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	if d := cmp.Diff([]string{"w1", "127.0.0.5:30000", "127.0.0.5:30001", "[fd00::5]:30000"}, reg.removed); d != "" {
		t.Error(d)
	}
}

// The codes that the comments in registry.proto promise.
func TestRegistry_RefusalsKeepTheirCodes(t *testing.T) {
	cases := []struct {
		err  error
		code codes.Code
		http int
	}{
		{load.ErrWorkerSpec, codes.InvalidArgument, 400},
		{load.ErrConfigured, codes.FailedPrecondition, 409},
		{load.ErrOriginConflict, codes.FailedPrecondition, 409},
		{load.ErrTooManyWorkers, codes.ResourceExhausted, 429},
		{load.ErrUnknownWorker, codes.NotFound, 404},
		{io.ErrUnexpectedEOF, codes.Internal, 500},
	}
	var err error
	reg := &fakeRegistry{
		register: func(w load.Worker) (load.Worker, error) { return w, err },
		remove:   func(string) error { return err },
	}
	r := start(t, Options{Registry: reg})
	client := loadmonitorpb.NewRegistryServiceClient(r.dial())
	for _, c := range cases {
		err = fmt.Errorf("worker %q: %w", "w1", c.err)
		_, got := client.DeregisterWorker(t.Context(), loadmonitorpb.DeregisterWorkerRequest_builder{Id: "w1"}.Build())
		if status.Code(got) != c.code {
			t.Errorf("deregister: %v, want %v", got, c.code)
		}
		_, got = client.RegisterWorker(t.Context(), loadmonitorpb.RegisterWorkerRequest_builder{
			Worker: loadmonitorpb.WorkerSpec_builder{Url: "http://127.0.0.5:1"}.Build()}.Build())
		if status.Code(got) != c.code {
			t.Errorf("register: %v, want %v", got, c.code)
		}
		resp, body := r.do(http.MethodDelete, workersPath+"/w1", nil)
		var answer struct {
			Code    int
			Message string
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != c.http || answer.Code != int(c.code) || answer.Message != err.Error() {
			t.Errorf("%v over HTTP: %s %s", c.err, resp.Status, body)
		}
	}
}

func TestRegistry_RefusesSpecsOutOfBounds(t *testing.T) {
	r := start(t, Options{})
	client := loadmonitorpb.NewRegistryServiceClient(r.dial())
	many := make([]string, maxModels+1)
	for i := range many {
		many[i] = fmt.Sprint("m", i)
	}
	cases := map[string]loadmonitorpb.WorkerSpec_builder{
		"id":             {Id: strings.Repeat("i", 257)},
		"url":            {Url: strings.Repeat("u", 2049)},
		"zone":           {Zone: strings.Repeat("z", 257)},
		"models":         {Models: many},
		"model length":   {Models: []string{strings.Repeat("m", 257)}},
		"empty model":    {Models: []string{""}},
		"role":           {Role: 77},
		"expected ranks": {ExpectedRanks: 1 << 31},
	}
	for name, spec := range cases {
		_, err := client.RegisterWorker(t.Context(), loadmonitorpb.RegisterWorkerRequest_builder{Worker: spec.Build()}.Build())
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := client.DeregisterWorker(t.Context(), &loadmonitorpb.DeregisterWorkerRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no id: %v", err)
	}
	if len(r.reg.registered)+len(r.reg.removed) > 0 {
		t.Errorf("reached the registry: %v %v", r.reg.registered, r.reg.removed)
	}
}

// Case J6: what is not exactly a spec is refused, never read as nothing.
func TestRegistry_RefusesBodiesThatAreNoSpec(t *testing.T) {
	r := start(t, Options{})
	cases := map[string]string{
		"empty":            ``,
		"not JSON":         `url=http://127.0.0.5:1`,
		"array":            `[{"url":"http://127.0.0.5:1"}]`,
		"unknown field":    `{"url":"http://127.0.0.5:1","colour":"red"}`,
		"camel case":       `{"url":"http://127.0.0.5:1","expectedRanks":1}`,
		"other case":       `{"URL":"http://127.0.0.5:1"}`,
		"field twice":      `{"url":"http://127.0.0.5:1","url":"http://127.0.0.6:1"}`,
		"null number":      `{"url":"http://127.0.0.5:1","expected_ranks":null}`,
		"null text":        `{"url":null}`,
		"negative number":  `{"url":"http://127.0.0.5:1","expected_ranks":-1}`,
		"fraction":         `{"url":"http://127.0.0.5:1","expected_ranks":1.5}`,
		"number as text":   `{"url":"http://127.0.0.5:1","expected_ranks":"4"}`,
		"too large number": `{"url":"http://127.0.0.5:1","expected_ranks":4294967296}`,
		"role with spaces": `{"url":"http://127.0.0.5:1","role":"DECODE "}`,
		"more behind it":   `{"url":"http://127.0.0.5:1"} {}`,
		"cut short":        `{"url":"http://127.0.0.5:1"`,
		"null model":       `{"url":"http://127.0.0.5:1","models":[null]}`,
		"deep":             `{"models":` + strings.Repeat("[", 30000),
	}
	for name, body := range cases {
		t.Run(name, func(t *testing.T) {
			resp, answer := r.do(http.MethodPost, workersPath, strings.NewReader(body))
			if resp.StatusCode != http.StatusBadRequest || !strings.HasPrefix(answer, `{"code":3,"message":"`) {
				t.Errorf("%s %s", resp.Status, answer)
			}
		})
	}
	if len(r.reg.registered) > 0 {
		t.Errorf("reached the registry: %v", r.reg.registered)
	}
}

// endless yields brackets and counts them.
type endless struct{ n int }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '['
	}
	e.n += len(p)
	return len(p), nil
}

// Case J6: a body without end is refused after a bounded part of it, announced or not.
func TestRegistry_RefusesHugeBodies(t *testing.T) {
	r := start(t, Options{})
	for _, head := range []string{"Content-Length: 1073741824", "Transfer-Encoding: chunked"} {
		c, err := net.Dial("tcp", r.HTTPAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: m\r\n%s\r\n\r\n", workersPath, head)
		sent := make(chan int)
		go func() {
			var src endless
			if strings.HasPrefix(head, "Transfer") {
				for src.n < 1<<30 {
					chunk := make([]byte, 4096)
					_, _ = src.Read(chunk)
					if _, err := fmt.Fprintf(c, "%x\r\n%s\r\n", len(chunk), chunk); err != nil {
						break
					}
				}
			} else {
				_, _ = io.Copy(c, io.LimitReader(&src, 1<<30))
			}
			sent <- src.n
		}()
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close {
			t.Errorf("%s: %s, close %v", head, resp.Status, resp.Close)
		}
		// The sender is cut off by the closed connection; what it sent until then sits in socket buffers.
		if n := next(t, sent, "end of the sender"); n > 64<<20 {
			t.Errorf("%s: the server took %d bytes", head, n)
		}
	}
}

// Case J6: a body that trickles is cut by a timeout.
func TestRegistry_CutsSlowBodies(t *testing.T) {
	r := start(t, Options{BodyTimeout: 50 * time.Millisecond})
	c, err := net.Dial("tcp", r.HTTPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: m\r\nContent-Length: 100\r\n\r\n{", workersPath)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("%s", resp.Status)
	}
	if len(r.reg.registered) > 0 {
		t.Errorf("reached the registry: %v", r.reg.registered)
	}
}

// A page of another site must not register workers through somebody's browser.
func TestRegistry_RefusesCrossOriginWrites(t *testing.T) {
	r := start(t, Options{})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url(workersPath), strings.NewReader(`{"url":"http://127.0.0.5:1"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden || len(r.reg.registered) > 0 {
		t.Errorf("%s, registered %v", resp.Status, r.reg.registered)
	}
}
