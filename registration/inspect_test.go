package registration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// Case K1: of 50 workers one accepts and never answers, one answers a byte a second, one redirects to itself. The others
// are found as if those did not exist: while they hang, and with fewer slots than hang once each has had its time.
func TestInspect_HungEnginesDelayNobody(t *testing.T) {
	for _, tt := range []struct {
		name      string
		timeout   time.Duration // far longer than the test waits, or not
		maxPosts  int
		hung      string // what the hung ones show when the others are found
		transport load.Transport
		most      int32 // requests at a hung one at once: a probe, and one to push once the worker is to push
	}{
		{"while they hang", 10 * time.Minute, 3, "", load.TransportUnspecified, 1},
		{"when they had their time", 500 * time.Millisecond, 2, "the engine does not answer in time", load.TransportPush, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked, open, most, hits atomic.Int32
			count := func(serve func(net.Conn)) string {
				return listen(t, func(c net.Conn) {
					asked.Add(1)
					most.Store(max(most.Load(), open.Add(1)))
					defer open.Add(-1)
					serve(c)
				})
			}
			silent := count(func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
			dripping := listen(t, func(c net.Conn) {
				asked.Add(1)
				_, _ = c.Read(make([]byte, 4096))
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{")
				tick := time.NewTicker(time.Second)
				defer tick.Stop()
				for range tick.C {
					if _, err := io.WriteString(c, " "); err != nil {
						return
					}
				}
			})
			loop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				hits.Add(1)
				http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
			}))
			defer loop.Close()
			hung := []Spec{{ID: "silent", URL: silent}, {ID: "dripping", URL: dripping}}
			specs := append(slices.Clone(hung), Spec{ID: "loop", URL: loop.URL})
			for i := range 47 {
				srv := httptest.NewServer(saying(sockets("m1", 2, 10000+10*i)))
				defer srv.Close()
				specs = append(specs, Spec{URL: srv.URL})
			}
			s := newSink()
			r := mustNew(t, Options{Sink: s, Dialer: s, Static: hung, MaxPosts: tt.maxPosts, Timeout: tt.timeout})
			stop := start(t, r)
			settled(t, r, func([]load.Registration) bool { return asked.Load() >= 2 })
			if err := r.SetStatic(specs); err != nil {
				t.Fatal(err)
			}
			want := map[string]load.Registration{
				"silent":   {ProbeError: tt.hung, Worker: load.Worker{Transport: tt.transport}},
				"dripping": {ProbeError: tt.hung, Worker: load.Worker{Transport: tt.transport}},
				"loop": {ProbeError: "HTTP 307: redirects are not followed: configure the engine's final address",
					Worker: load.Worker{Transport: load.TransportPush}},
			}
			settled(t, r, func(all []load.Registration) bool {
				for _, reg := range all {
					w, odd := want[reg.Worker.ID]
					if !odd {
						w.Worker.Transport = load.TransportZMQ
					}
					if reg.ProbeError != w.ProbeError || reg.Worker.Transport != w.Worker.Transport {
						return false
					}
				}
				return len(all) == 50
			})
			if tt.hung == "" && open.Load() != 1 {
				t.Errorf("%d requests hang at the silent engine, want one", open.Load())
			}
			stop()
			if n := len(s.ends()); n != 94 {
				t.Errorf("%d targets, want two for each engine that answers", n)
			}
			if hits.Load() > 20 || most.Load() > tt.most {
				t.Errorf("%d requests at the engine that redirects, %d at once at the silent one", hits.Load(), most.Load())
			}
		})
	}
}

// Case N1: nothing of what a peer sends beside the named fields is kept or shown, whatever is wrong with it.
func TestInspect_HostilePeersAreNotQuoted(t *testing.T) {
	say := func(s string) string {
		return listen(t, func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, s)
		})
	}
	ok := func(body string) string { return say("HTTP/1.1 200 OK\r\n\r\n" + body) }
	const secrets = `"api_key":"sentinel-1","admin_api_key":"sentinel-2"`
	specs := []Spec{
		{ID: "echo", URL: listen(t, func(c net.Conn) { _, _ = io.Copy(c, c) })},
		{ID: "status line", URL: say("sentinel-1\r\n\r\n")},
		{ID: "header", URL: say("HTTP/1.1 200 OK\r\nsentinel-1\r\n\r\n")},
		{ID: "status text", URL: say("HTTP/1.1 418 sentinel-1\r\nContent-Length: 0\r\n\r\n")},
		{ID: "length", URL: say("HTTP/1.1 200 OK\r\nContent-Length: sentinel-1\r\n\r\n")},
		{ID: "chunk", URL: say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nsentinel-1\r\n")},
		{ID: "location", URL: say("HTTP/1.1 302 x\r\nLocation: http://sentinel-1/\r\nContent-Length: 0\r\n\r\n")},
		{ID: "long header", URL: say("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("sentinel-1", 10_000) + "\r\n\r\n")},
		{ID: "good", URL: ok(`{` + secrets + `,"dp_size":2}`)},
		{ID: "sockets", URL: ok(`{` + secrets + `,"dp_size":2,"kv_events":{` + secrets + `,"load_endpoint_port_base":5559}}`)},
		{ID: "host", URL: ok(`{"kv_events":{"load_endpoint_port_base":5559,"endpoint_host":"sentinel 1"}}`)},
		{ID: "port", URL: ok(`{"kv_events":{"load_endpoint_port_base":"sentinel-1"}}`)},
		{ID: "publisher", URL: ok(`{"kv_events":{"load_endpoint_port_base":5559,"publisher":"sentinel-1"}}`)},
		{ID: "mode", URL: ok(`{"disaggregation_mode":"sentinel-1"}`)},
		{ID: "size", URL: ok(`{"dp_size":"sentinel-1","kv_events":{"load_endpoint_port_base":5559}}`)},
		{ID: "cut", URL: ok(`{` + secrets)},
		{ID: "broken", URL: ok(`{"api_key":sentinel-1}`)},
		{ID: "html", URL: ok(`<p>sentinel-1</p>`)},
		{ID: "large", URL: ok(`{"api_key":"` + strings.Repeat("sentinel-1", maxInfoBytes/10) + `"}`)},
		{ID: "not https", URL: "https://" + say("HTTP/1.1 400 sentinel-1\r\n\r\n")},
	}
	var log syncBuffer
	s := newSink()
	r := mustNew(t, Options{Sink: s, Dialer: s, Static: specs, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	stop := start(t, r)
	good := map[string]bool{"good": true, "sockets": true, "host": true, "port": true, "publisher": true, "mode": true, "size": true}
	all := settled(t, r, func(all []load.Registration) bool {
		for _, reg := range all {
			asked := reg.ProbeError != "" || reg.Worker.Transport != load.TransportUnspecified
			if !asked || good[reg.Worker.ID] != (reg.ProbeError == "") {
				return false
			}
		}
		return len(all) == len(specs)
	})
	stop()
	var shown strings.Builder
	fmt.Fprintln(&shown, all, s.notes, s.ranks, s.sets, s.targets)
	for _, m := range r.Metrics() {
		m.Collect(func(v float64, labels ...load.Label) { fmt.Fprintln(&shown, m.Name, m.Help, v, labels) })
	}
	if text := shown.String() + log.String(); strings.Contains(text, "sentinel") {
		t.Errorf("a sentinel shows in\n%s", text)
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// names is a resolver whose records can be changed.
type names struct {
	mu      sync.Mutex
	records map[string][]netip.Addr
	asked   map[string]int
	giveUp  chan struct{} // ends the look-ups that have no answer when it is closed; nil: only their time does
	hangs   int           // look-ups that have no answer
}

func newNames() *names { return &names{records: map[string][]netip.Addr{}, asked: map[string]int{}} }

func (n *names) point(name string, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.records[name] = nil
	for _, a := range addrs {
		n.records[name] = append(n.records[name], netip.MustParseAddr(a))
	}
}

func (n *names) lookups(name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[name]
}

func (n *names) hanging() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hangs
}

// resolve never answers for a name without a record.
func (n *names) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked[host]++
	addrs, known := n.records[host]
	if known {
		return addrs, nil
	}
	n.hangs++
	n.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-n.giveUp:
	}
	n.mu.Lock()
	n.hangs--
	return nil, &net.DNSError{Err: "i/o timeout", Name: host, IsTimeout: true}
}

// onTwoAddresses starts two servers that share a port on 127.0.0.2 and 127.0.0.3.
func onTwoAddresses(t *testing.T, first, second http.Handler) (port string) {
	t.Helper()
	for range 50 {
		a, err := net.Listen("tcp", "127.0.0.2:0")
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ = net.SplitHostPort(a.Addr().String())
		b, err := net.Listen("tcp", net.JoinHostPort("127.0.0.3", port))
		if err != nil {
			a.Close()
			continue
		}
		for l, h := range map[net.Listener]http.Handler{a: first, b: second} {
			srv := httptest.NewUnstartedServer(h)
			srv.Listener.Close()
			srv.Listener = l
			srv.Start()
			t.Cleanup(srv.Close)
		}
		return port
	}
	t.Fatal("no port is free on both addresses")
	return ""
}

// Case L4: a name that points elsewhere now leads elsewhere at the next question, although the engine that it led to
// before still answers.
func TestInspect_NamesAreLookedUpForEachRequest(t *testing.T) {
	before, after := saying(sockets("m1", 1, 5559)), saying(sockets("m2", 1, 5559))
	dns := newNames()
	dns.point("w.pool", "127.0.0.2")
	s := newSink()
	r := mustNew(t, Options{Sink: s, Dialer: s, Resolve: dns.resolve, Static: []Spec{{ID: "w", URL: "w.pool:" + onTwoAddresses(t, before, after)}}})
	stop := start(t, r)
	serves := func(model string) func([]load.Registration) bool {
		return func(all []load.Registration) bool {
			return len(all) == 1 && slices.Equal(all[0].Worker.Models, []string{model})
		}
	}
	settled(t, r, serves("m1"))
	for range 3 {
		if err := r.Confirm(t.Context(), "w"); err != nil {
			t.Fatal(err)
		}
	}
	if n := dns.lookups("w.pool"); n < 4 {
		t.Errorf("the name was looked up %d times for 4 questions", n)
	}
	dns.point("w.pool", "127.0.0.3")
	if err := r.Confirm(t.Context(), "w"); err == nil || !strings.Contains(err.Error(), `serves model "m2", not "m1"`) {
		t.Errorf("%v, want the engine that the name leads to now", err)
	}
	settled(t, r, serves("m2"))
	stop()
}

// Case L3: a name whose server does not answer shows that, and holds up nobody.
func TestInspect_SlowNameDelaysNobody(t *testing.T) {
	e := httptest.NewServer(saying(sockets("m1", 1, 5559)))
	defer e.Close()
	_, port, _ := net.SplitHostPort(e.Listener.Addr().String())
	dns := newNames()
	dns.point("good.pool", "192.0.2.1", "127.0.0.1") // the first one is not reached
	dns.point("none.pool")
	dns.giveUp = make(chan struct{})
	s := newSink()
	slow := Spec{ID: "slow", URL: "slow.pool:1"}
	r := mustNew(t, Options{Sink: s, Dialer: s, Resolve: dns.resolve, Timeout: 10 * time.Minute, Static: []Spec{slow}})
	stop := start(t, r)
	settled(t, r, func([]load.Registration) bool { return dns.hanging() == 1 })
	if err := r.SetStatic([]Spec{
		{ID: "good", URL: "good.pool:" + port}, {ID: "literal", URL: e.URL}, {ID: "none", URL: "none.pool:1"}, slow,
	}); err != nil {
		t.Fatal(err)
	}
	others := func(all []load.Registration) bool {
		return len(all) == 4 && all[0].Worker.Transport == load.TransportZMQ && all[1].Worker.Transport == load.TransportZMQ &&
			all[2].ProbeError == "the host name does not exist"
	}
	settled(t, r, others)
	if dns.lookups("slow.pool") != 1 || dns.hanging() != 1 {
		t.Error("the look-up ended while the others were awaited")
	}
	close(dns.giveUp)
	settled(t, r, func(all []load.Registration) bool {
		return others(all) && all[3].ProbeError == "the host name cannot be looked up"
	})
	if err := r.SetStatic(nil); err != nil {
		t.Fatal(err)
	}
	if n := len(r.Registrations()); n != 0 {
		t.Errorf("%d workers are left", n)
	}
	stop()
}

// Case L3: a look-up that takes longer than a request may says so.
func TestInspect_SlowNameIsGivenUp(t *testing.T) {
	r := mustNew(t, Options{Resolve: newNames().resolve, Timeout: 100 * time.Millisecond, Static: []Spec{{ID: "slow", URL: "slow.pool:1"}}})
	start(t, r)
	settled(t, r, func(all []load.Registration) bool {
		return len(all) == 1 && all[0].ProbeError == "the host name cannot be looked up"
	})
}

// Whoever vouches for an engine asks on a new connection; otherwise one that is kept will do.
func TestInspect_ConnectionIsKeptForAddressesUnlessSomebodyWaits(t *testing.T) {
	for _, tt := range []struct {
		host  string
		fresh bool
		want  int32
	}{{"127.0.0.1", false, 1}, {"127.0.0.1", true, 3}, {"localhost", false, 3}} {
		var conns atomic.Int32
		srv := httptest.NewUnstartedServer(saying(`{}`))
		srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				conns.Add(1)
			}
		}
		srv.Start()
		_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
		origin := tt.host + ":" + port
		r := mustNew(t, Options{})
		for range 3 {
			if in := r.engines.inspect(t.Context(), &load.Worker{URL: "http://" + origin, Origin: origin}, "", renewal, tt.fresh); in.outcome != granted {
				t.Fatalf("%s: %+v", tt.host, in)
			}
		}
		r.engines.close()
		srv.Close()
		if n := conns.Load(); n != tt.want {
			t.Errorf("%s, fresh %v: %d connections for 3 requests, want %d", tt.host, tt.fresh, n, tt.want)
		}
	}
}

// An engine that refuses, with words, is asked over the same connection the next time, and so are its leases.
func TestInspect_ConnectionIsKeptAfterARefusal(t *testing.T) {
	w, conns := scripted(t, true, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 12\r\n\r\n{\"error\":\"\"}", grant)
	r := mustNew(t, Options{})
	defer r.engines.close()
	if in := r.engines.inspect(t.Context(), w, "", renewal, false); in.outcome != unauthorized {
		t.Errorf("%+v", in)
	}
	if a, _ := r.engines.start(t.Context(), w, "", renewal); a.outcome != granted {
		t.Errorf("%+v", a)
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections for 2 requests", n)
	}
}

// A refusal counts although its words do not end, and costs no more than they may.
func TestInspect_RefusalWithoutEnd(t *testing.T) {
	for _, body := range []string{"no", strings.Repeat("no", maxAnswerBytes)} {
		w, _ := scripted(t, true, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 1000000\r\n\r\n"+body)
		r := mustNew(t, Options{Timeout: time.Second})
		if in := r.engines.inspect(t.Context(), w, "", renewal, false); in.outcome != unauthorized || kept(r) != 0 {
			t.Errorf("%+v, %d connections are kept", in, kept(r))
		}
		r.engines.close()
	}
}

// Case L1: an engine at an IPv6 address is asked there.
func TestInspect_IPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Logf("no IPv6 loopback here: %v", err)
		return
	}
	srv := httptest.NewUnstartedServer(saying(sockets("m1", 1, 5559)))
	srv.Listener.Close()
	srv.Listener = l
	srv.Start()
	defer srv.Close()
	s := newSink()
	r := mustNew(t, Options{Sink: s, Dialer: s, Static: []Spec{{ID: "w", URL: srv.URL}}})
	stop := start(t, r)
	settled(t, r, func(all []load.Registration) bool {
		return len(all) == 1 && all[0].Worker.Transport == load.TransportZMQ
	})
	stop()
	if got := s.ends(); !slices.Equal(got, []string{"w 0 [::1]:5559"}) {
		t.Errorf("targets %q", got)
	}
}
