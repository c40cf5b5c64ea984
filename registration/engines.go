package registration

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

const (
	// maxAnswerBytes bounds what is read of an engine's answer, its header included.
	maxAnswerBytes = 64 << 10
	// maxIdle bounds the connections that are kept between two requests; the others are opened anew.
	maxIdle = 1024
)

// purpose says what a request is for. Each has slots of its own, so that engines that hang, which fill those for another
// try, take them neither from renewals of living leases nor from workers that were never asked.
type purpose uint8

const (
	firstTry purpose = iota
	renewal
	nextTry
	purposes // how many there are
)

// engines is the way to all engines: one HTTP client with bounded connections, and the slots that bound how many requests
// are in flight.
type engines struct {
	// immutable after newEngines
	timing    timing
	advertise advertise
	transport *http.Transport

	slots [purposes]chan struct{}

	posts [outcomes]atomic.Uint64
}

func newEngines(o Options) *engines {
	e := &engines{
		timing: timing{interval: o.ReportInterval, lease: o.Lease, timeout: o.Timeout, slow: o.SlowRetry},
		advertise: advertise{
			listen: netip.AddrPortFrom(o.Listen.Addr().Unmap(), o.Listen.Port()),
			ip:     o.AdvertiseIP.Unmap(),
			port:   o.AdvertisePort,
			route:  route,
		},
		transport: &http.Transport{
			// Engines are dialled directly whatever the environment says: a proxy would see the tokens, and the engine
			// would be told the proxy's idea of our address.
			Proxy:                  nil,
			DialContext:            dialFor(&net.Dialer{}),
			TLSHandshakeTimeout:    o.Timeout,
			DisableCompression:     true,
			MaxIdleConns:           maxIdle,
			MaxIdleConnsPerHost:    1,
			IdleConnTimeout:        2 * o.Lease,
			MaxResponseHeaderBytes: maxAnswerBytes,
			WriteBufferSize:        1 << 10,
			ReadBufferSize:         1 << 10,
		},
	}
	for p := range e.slots {
		e.slots[p] = make(chan struct{}, o.MaxPosts)
	}
	return e
}

// requestKey finds a request's context from the dial that the transport makes for it.
type requestKey struct{}

// dialFor dials within the lifetime of the request. By itself the transport lets a dial go on after its request has
// ended, so that a worker that swallows packets, or was removed, would keep a socket for minutes.
func dialFor(d *net.Dialer) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if request, ok := ctx.Value(requestKey{}).(context.Context); ok {
			ctx = request
		}
		return d.DialContext(ctx, network, addr)
	}
}

func (e *engines) close() { e.transport.CloseIdleConnections() }

// startRequest is the body of POST /v1/start_reporting. The engine refuses any other key.
type startRequest struct {
	IP               string `json:"ip"`
	Port             uint16 `json:"port"`
	ReportIntervalMs int64  `json:"report_interval_ms"`
	LeaseTTLMs       int64  `json:"lease_ttl_ms"`
}

// start asks one engine once to report here, or to go on. It waits for a free slot, then takes at most the timeout. sent
// is when the request began. The answer means nothing when ctx has ended.
func (e *engines) start(ctx context.Context, w load.Worker, token string, why purpose) (a answer, sent time.Time) {
	slots := e.slots[why]
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return answer{}, time.Now()
	}
	sent = time.Now()
	ctx, cancel := context.WithTimeout(ctx, e.timing.timeout)
	defer cancel()
	a = e.post(ctx, w, token)
	if ctx.Err() != context.Canceled {
		e.posts[a.outcome].Add(1)
	}
	return a, sent
}

func (e *engines) post(ctx context.Context, w load.Worker, tokenPath string) answer {
	var token string
	if tokenPath != "" {
		var err error
		if token, err = readToken(tokenPath); err != nil {
			return answer{outcome: badToken, reason: err.Error()}
		}
	}
	at, err := e.advertise.to(ctx, w.Origin)
	if err != nil {
		return failed(err)
	}
	body, err := json.Marshal(startRequest{
		IP:               at.Addr().String(),
		Port:             at.Port(),
		ReportIntervalMs: e.timing.interval.Milliseconds(),
		LeaseTTLMs:       e.timing.lease.Milliseconds(),
	})
	if err != nil {
		return failed(err)
	}
	scheme, _, _ := strings.Cut(w.URL, "://")
	// Built from its parts: the engine derives the worker's address from the Host header, so that must be the origin to
	// the letter, default port included.
	to := &url.URL{Scheme: scheme, Host: w.Origin, Path: "/v1/start_reporting"}
	req, err := http.NewRequestWithContext(context.WithValue(ctx, requestKey{}, ctx), http.MethodPost, to.String(), bytes.NewReader(body))
	if err != nil {
		return failed(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "loadmonitor")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	// Asking twice grants one lease, so the transport may try again when the engine closed an idle connection under the
	// request. An empty value says so without going on the wire.
	req.Header["Idempotency-Key"] = nil
	if _, err := netip.ParseAddr(hostOf(w.Origin)); err != nil {
		// A name may have moved: a connection that is kept would go on talking to whoever had it before.
		req.Close = true
	}
	// The transport and not a client: no redirects, no cookies.
	resp, err := e.transport.RoundTrip(req)
	if err != nil {
		return failed(err)
	}
	defer resp.Body.Close()
	answered, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	if err != nil {
		a := failed(err)
		a.http = resp.StatusCode
		return a
	}
	return judge(resp.StatusCode, resp.Header, answered, tokenPath)
}
