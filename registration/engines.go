package registration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

// maxAnswerBytes bounds the header of an engine's answer, and the body but for that of /server_info.
const maxAnswerBytes = 64 << 10

// purpose says what a request is for. Each has slots of its own, so that engines that hang, which fill those for another
// try, take them neither from engines that answered last time nor from workers that were never asked.
type purpose uint8

const (
	firstTry purpose = iota
	renewal          // of a living lease, or of what is known of an engine
	nextTry
	vouching // somebody waits for the answer
	purposes // how many there are
)

// slots bound how many requests are in flight.
type slots [purposes]chan struct{}

func newSlots(n int) (s slots) {
	for p := range s {
		s[p] = make(chan struct{}, n)
	}
	return s
}

// engines is the way to all engines: HTTP with bounded connections and requests.
type engines struct {
	// immutable after newEngines
	timing    timing
	advertise advertise
	maxRanks  int
	dial      dialFunc
	idle      *idle

	postSlots, probeSlots slots

	posts, probes [outcomes]atomic.Uint64
}

func newEngines(o *Options) *engines {
	e := &engines{
		timing:   timing{interval: o.ReportInterval, lease: o.Lease, timeout: o.Timeout, slow: o.SlowRetry, probe: o.ProbeInterval},
		maxRanks: o.MaxRanks,
		dial:     dialerOf(o.Resolve),
	}
	e.advertise = advertise{
		listen: netip.AddrPortFrom(o.Listen.Addr().Unmap(), o.Listen.Port()),
		ip:     o.AdvertiseIP.Unmap(),
		port:   o.AdvertisePort,
		route:  routeOver(e.dial),
	}
	e.idle = newIdle(2*max(o.Lease, o.ProbeInterval), openFiles)
	e.postSlots, e.probeSlots = newSlots(o.MaxPosts), newSlots(o.MaxPosts)
	return e
}

func (e *engines) close() { e.idle.close() }

// startRequest is the body of POST /v1/start_reporting. The engine refuses any other key.
type startRequest struct {
	IP               string `json:"ip"`
	Port             uint16 `json:"port"`
	ReportIntervalMs int64  `json:"report_interval_ms"`
	LeaseTTLMs       int64  `json:"lease_ttl_ms"`
}

// start asks one engine once to report here, or to go on. It waits for a free slot, then takes at most the timeout. sent
// is when the request began. The answer means nothing when ctx has ended.
func (e *engines) start(ctx context.Context, w *load.Worker, token string, why purpose) (a answer, sent time.Time) {
	slots := e.postSlots[why]
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

func (e *engines) post(ctx context.Context, w *load.Worker, tokenFile string) answer {
	resp, failure := e.send(ctx, w, false, func(over net.Conn) (*http.Request, answer) {
		at, err := e.advertise.to(ctx, w.Origin, over)
		if err != nil {
			return nil, failed(err)
		}
		body, err := json.Marshal(startRequest{
			IP:               at.Addr().String(),
			Port:             at.Port(),
			ReportIntervalMs: e.timing.interval.Milliseconds(),
			LeaseTTLMs:       e.timing.lease.Milliseconds(),
		})
		if err != nil {
			return nil, failed(err)
		}
		req, failure := e.request(ctx, http.MethodPost, w, "/v1/start_reporting", body, tokenFile)
		if req != nil {
			req.Header.Set("Content-Type", "application/json")
		}
		return req, failure
	})
	if resp == nil {
		return failure
	}
	defer resp.Body.Close()
	if resp.StatusCode < http.StatusOK {
		// After 101 the body is the connection itself.
		return judge(resp.StatusCode, resp.Header, nil, tokenFile)
	}
	answered, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	if err != nil {
		a := failed(err)
		a.http = resp.StatusCode
		return a
	}
	return judge(resp.StatusCode, resp.Header, answered, tokenFile)
}

// send sends a request to an engine once, over the connection that is kept for it or a new one, and returns the answer, or
// no response and why. build makes the request for the connection that it is given, or for one that is to be made. It may be
// called twice and the engine may be asked twice, when it closed the kept connection under the first request: asking is
// idempotent.
func (e *engines) send(ctx context.Context, w *load.Worker, fresh bool, build func(over net.Conn) (*http.Request, answer)) (*http.Response, answer) {
	var keep func(net.Conn)
	// A name may have moved (case L4): a connection that is kept would go on talking to whoever had it before.
	if _, err := netip.ParseAddr(hostOf(w.Origin)); err == nil && !fresh {
		keep = func(c net.Conn) { e.idle.put(w.URL, c) }
		if c := e.idle.take(w.URL); c != nil {
			req, failure := build(c)
			if req == nil {
				_ = c.Close()
				return nil, failure
			}
			resp, err := over(ctx, c, req, keep)
			if err == nil {
				return resp, answer{}
			}
			if !errors.Is(err, errNoAnswer) {
				return nil, failed(err)
			}
		}
	}
	req, failure := build(nil)
	if req == nil {
		return nil, failure
	}
	c, err := e.connect(ctx, w)
	if err != nil {
		return nil, failed(err)
	}
	req.Close = keep == nil
	resp, err := over(ctx, c, req, keep)
	if err != nil {
		return nil, failed(err)
	}
	return resp, answer{}
}

// request makes a request to an engine, with the token of a file if one is named. Without a request the answer says why.
// It is sent as it is: no redirects, no cookies, and no proxy, which would see the tokens.
func (e *engines) request(ctx context.Context, method string, w *load.Worker, path string, body []byte, tokenFile string) (*http.Request, answer) {
	var token string
	if tokenFile != "" {
		var err error
		if token, err = readToken(tokenFile); err != nil {
			return nil, answer{outcome: badToken, reason: err.Error()}
		}
	}
	scheme, _, _ := strings.Cut(w.URL, "://")
	// Built from its parts: the engine derives the worker's address from the Host header, so that must be the origin to
	// the letter, default port included.
	to := &url.URL{Scheme: scheme, Host: w.Origin, Path: path}
	req, err := http.NewRequestWithContext(ctx, method, to.String(), bytes.NewReader(body))
	if err != nil {
		return nil, failed(err)
	}
	req.Header.Set("User-Agent", "loadmonitor")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return req, answer{}
}
