package fetching

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/loadmonitor/loadmonitor/bridge/zmq/zmqtest"
)

// publisher is an engine that publishes its load: /server_info, and a socket for each rank.
type publisher struct {
	web  *httptest.Server
	mu   sync.Mutex
	info map[string]any
	hang bool
	say  []byte // the payload of every rank; nil: the ordinary one
	mute bool   // publish nothing
	stop func()
}

// ports are ports that an engine may have on several addresses of loopback.
type ports struct{ web, base int }

// newPorts returns ports below those that the system gives away.
func newPorts() ports {
	web := 20000 + rand.IntN(10000)
	return ports{web, web + 1}
}

// startPublisher starts an engine at one address of loopback whose ranks all run so many requests. It reports false when
// a port is taken.
func startPublisher(t *testing.T, host, model string, at ports, ranks int, running int64) (*publisher, bool) {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", host, at.web))
	if err != nil {
		return nil, false
	}
	context, err := zmq4.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	var sockets []*zmqtest.Publisher
	ended := make(chan struct{})
	done := make(chan struct{})
	var once sync.Once
	e := &publisher{info: map[string]any{
		"served_model_name": model, "disaggregation_mode": "null", "dp_size": ranks, "api_key": "secret",
		"kv_events": map[string]any{"publisher": "zmq", "endpoint_host": "*", "dp_size": ranks, "load_endpoint_port_base": at.base, "load_topic": "load"},
	}}
	for rank := range ranks {
		s, err := zmqtest.NewPublisher(context, fmt.Sprintf("tcp://%s:%d", host, at.base+rank))
		if err != nil {
			for _, s := range sockets {
				s.Close()
			}
			l.Close()
			_ = context.Term()
			return nil, false
		}
		sockets = append(sockets, s)
	}
	go func() {
		defer close(done)
		defer context.Term()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for n := int64(0); ; n++ {
			select {
			case <-ended:
				for _, s := range sockets {
					s.Close()
				}
				return
			case <-tick.C:
			}
			e.mu.Lock()
			say, mute := e.say, e.mute
			e.mu.Unlock()
			if mute {
				continue
			}
			for rank, s := range sockets {
				payload := say
				if payload == nil {
					payload = zmqtest.LoadStat(running, 0, 100, 1000, int64(rank))
				}
				_ = s.Send("load", n, payload)
			}
		}
	}()
	e.web = httptest.NewUnstartedServer(http.HandlerFunc(e.serve))
	e.web.Listener.Close()
	e.web.Listener = l
	e.web.Start()
	e.stop = func() {
		once.Do(func() {
			e.web.CloseClientConnections()
			e.web.Close()
			close(ended)
			<-done
		})
	}
	t.Cleanup(e.stop)
	return e, true
}

// says lets every rank publish a payload from now on.
func (e *publisher) says(payload []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.say = payload
}

// falls silent, connections kept.
func (e *publisher) fallSilent() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mute = true
}

func (e *publisher) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/server_info" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	e.mu.Lock()
	info, hang := e.info, e.hang
	e.mu.Unlock()
	if hang {
		<-r.Context().Done()
		return
	}
	_ = json.NewEncoder(w).Encode(info)
}

// anEngine starts one on free ports.
func anEngine(t *testing.T, host, model string, ranks int, running int64) (*publisher, ports) {
	t.Helper()
	for range 100 {
		at := newPorts()
		if e, ok := startPublisher(t, host, model, at, ranks, running); ok {
			return e, at
		}
	}
	t.Fatal("no free ports")
	return nil, ports{}
}
