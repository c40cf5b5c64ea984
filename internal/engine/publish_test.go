package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/loadmonitor/loadmonitor/load"
	"github.com/loadmonitor/loadmonitor/reporter/pub"
)

// advert is what a monitor reads of /server_info.
type advert struct {
	DPSize   int `json:"dp_size"`
	KVEvents *struct {
		Publisher string  `json:"publisher"`
		Host      string  `json:"endpoint_host"`
		DPSize    int     `json:"dp_size"`
		Base      int     `json:"load_endpoint_port_base"`
		Topic     *string `json:"load_topic"`
	} `json:"kv_events"`
}

func readAdvert(t *testing.T, url string) advert {
	t.Helper()
	var a advert
	if code := get(t, url+"/server_info", &a); code != http.StatusOK {
		t.Fatalf("server_info: %d", code)
	}
	return a
}

// ear is a SUB socket on one rank, as a monitor opens it.
type ear struct {
	t      *testing.T
	socket *zmq.Socket
	topic  string
}

func listenTo(t *testing.T, a advert, rank int) *ear {
	t.Helper()
	s, err := zmq.NewSocket(zmq.SUB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	topic := ""
	if a.KVEvents.Topic != nil {
		topic = *a.KVEvents.Topic
	}
	err = errors.Join(s.SetLinger(0), s.SetSubscribe(topic), s.SetReconnectIvl(10*time.Millisecond),
		s.Connect("tcp://"+net.JoinHostPort(a.KVEvents.Host, strconv.Itoa(a.KVEvents.Base+rank))))
	if err != nil {
		t.Fatal(err)
	}
	return &ear{t, s, topic}
}

// heard is one message.
type heard struct {
	sequence int64
	isMap    bool
	length   int // of the array
	rank     int
	time     float64 // of a map
}

// hear returns the next message, or false after the wait.
func (e *ear) hear(wait time.Duration) (heard, bool) {
	e.t.Helper()
	if err := e.socket.SetRcvtimeo(wait); err != nil {
		e.t.Fatal(err)
	}
	frames, err := e.socket.RecvMessageBytes(0)
	if zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) {
		return heard{}, false
	}
	if err != nil {
		e.t.Fatal(err)
	}
	if len(frames) != 3 || string(frames[0]) != e.topic || len(frames[1]) != 8 {
		e.t.Fatalf("frames %q", frames)
	}
	h := heard{sequence: int64(binary.BigEndian.Uint64(frames[1]))}
	var payload any
	if err := msgpack.Unmarshal(frames[2], &payload); err != nil {
		e.t.Fatal(err)
	}
	switch v := payload.(type) {
	case []any:
		h.length = len(v)
		h.rank, _ = strconv.Atoi(fmt.Sprint(v[5]))
	case map[string]any:
		h.isMap = true
		h.time, _ = v["timestamp"].(float64)
		if rank, told := v["dp_rank"]; told {
			h.rank, _ = strconv.Atoi(fmt.Sprint(rank))
		}
	}
	return h, true
}

func (e *ear) must() heard {
	e.t.Helper()
	h, ok := e.hear(30 * time.Second)
	if !ok {
		e.t.Fatal("nothing was published")
	}
	return h
}

// silence returns once nothing came for longer than an engine leaves between two messages.
func (e *ear) silence() {
	e.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		if _, ok := e.hear(1500 * time.Millisecond); !ok {
			return
		}
		if time.Now().After(deadline) {
			e.t.Fatal("it goes on publishing")
		}
	}
}

func do(t *testing.T, f *Fleet, c Command) {
	t.Helper()
	if err := f.Do(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

func TestFleet_EveryRankIsHeardWhereServerInfoSaysSo(t *testing.T) {
	t.Parallel()
	const ranks = 3
	f := startFleet(t, Options{Workers: 3, Ranks: ranks, Transport: TransportZMQ})
	for i, want := range []heard{{length: 11}, {isMap: true}, {length: 6}} {
		url := f.URLs()[i]
		a := readAdvert(t, url)
		if a.KVEvents == nil || a.KVEvents.Publisher != "zmq" || a.KVEvents.DPSize != ranks || a.DPSize != ranks {
			t.Fatalf("worker %d advertises %+v", i, a)
		}
		if told := a.KVEvents.Topic != nil; told == want.isMap {
			t.Errorf("worker %d tells its topic: %v", i, told)
		}
		for rank := range ranks {
			h := listenTo(t, a, rank).must()
			if h.isMap != want.isMap || h.length != want.length || h.rank != rank {
				t.Errorf("worker %d rank %d: heard %+v, want %+v", i, rank, h, want)
			}
		}
		res, err := http.Post(url+"/v1/start_reporting", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusNotFound {
			t.Errorf("worker %d answers start_reporting with %d, want 404", i, res.StatusCode)
		}
		if s := f.State()[i]; s.Publisher == nil || s.Publisher.Published == 0 || s.Reporter != nil || s.FailedPublish != 0 {
			t.Errorf("state %+v", s)
		}
	}
}

func TestFleet_MixedFleetPushesAndPublishesInTurn(t *testing.T) {
	t.Parallel()
	m := startMonitor(t)
	f := startFleet(t, Options{Workers: 6, Ranks: 1, Transport: TransportMixed})
	for i, url := range f.URLs() {
		a, state := readAdvert(t, url), f.State()[i]
		switch want := []string{"push", "load_stat", "load_snapshot"}[i%3]; {
		case state.Reports != want || (a.KVEvents == nil) != (want == "push") || (state.Reporter == nil) == (want == "push"):
			t.Errorf("worker %d: %+v, advertises %+v, want %s", i, state, a.KVEvents, want)
		case want == "push":
			m.register(t, url)
		default:
			listenTo(t, a, 0).must()
		}
	}
	if s := f.State()[0]; s.SourceInstance == "" {
		t.Errorf("state %+v", s)
	}
}

func TestFleet_CrashClosesLoadSocketsAndRestartBeginsAtZeroOnTheSamePorts(t *testing.T) {
	t.Parallel()
	f := startFleet(t, Options{Workers: 2, Ranks: 1, Transport: TransportZMQ, Cycle: 20 * time.Millisecond})
	url := f.URLs()[1] // maps, which are sent at every idle turn
	before := readAdvert(t, url).KVEvents
	addr := net.JoinHostPort(before.Host, strconv.Itoa(before.Base))
	for range 3 {
		a := readAdvert(t, url)
		if a.KVEvents.Base != before.Base {
			t.Errorf("port %d, before the crash %d", a.KVEvents.Base, before.Base)
		}
		e := listenTo(t, a, 0)
		// Everything that this life sent has a number, and there are no others.
		h := e.must()
		if sent := f.State()[1].Publisher.Published; h.sequence > int64(sent) { // the newest may not be counted yet
			t.Errorf("sequence %d in a life with %d messages", h.sequence, sent)
		}
		for h.sequence < 10 {
			h = e.must()
		}
		do(t, f, Command{Action: Crash, Worker: "1"})
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			t.Error("a crashed engine's load socket is bound")
		}
		if s := f.State()[1]; s.Publisher != nil || s.Condition != Crashed {
			t.Errorf("state %+v", s)
		}
		e.socket.Close() // else it would take over into the next life what was on its way
		do(t, f, Command{Action: Restart, Worker: "1"})
	}
}

func TestFleet_HungEngineAndSilentRankPublishNothing(t *testing.T) {
	t.Parallel()
	f := startFleet(t, Options{Workers: 2, Ranks: 2, Transport: TransportZMQ})
	for i, url := range f.URLs() {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			worker, rank := strconv.Itoa(i), 1
			a := readAdvert(t, url)
			quiet, other := listenTo(t, a, rank), listenTo(t, a, 0)
			quiet.must()
			do(t, f, Command{Action: Silence, Worker: worker, Rank: &rank})
			quiet.silence()
			// Case E2: the other rank goes on.
			for other.must(); ; {
				if _, more := other.hear(0); !more {
					break
				}
			}
			other.must()
			do(t, f, Command{Action: Resume, Worker: worker, Rank: &rank})
			quiet.must()
			do(t, f, Command{Action: Hang, Worker: worker})
			quiet.silence()
			other.silence()
			if got := readAdvert(t, url); got.KVEvents == nil || got.KVEvents.Base != a.KVEvents.Base {
				t.Errorf("a hung engine advertises %+v", got.KVEvents)
			}
			do(t, f, Command{Action: Resume, Worker: worker})
			quiet.must()
			other.must()
		})
	}
}

func TestFleet_FixedLoadPortsFollowTheEngines(t *testing.T) {
	o := Options{Workers: 5, Ranks: 4, BasePort: 20000, Transport: TransportZMQ}
	taken := map[int]bool{}
	for i := range o.Workers {
		taken[o.BasePort+i] = true
	}
	for i := range o.Workers {
		for rank := range o.Ranks {
			port := o.loadPort(i) + rank
			if taken[port] {
				t.Errorf("port %d of worker %d rank %d is taken twice", port, i, rank)
			}
			taken[port] = true
		}
	}
	if last := o.BasePort + o.Workers*(1+o.Ranks) - 1; !taken[last] || len(taken) != o.Workers*(1+o.Ranks) {
		t.Errorf("%d ports, the last of them %d is taken: %v", len(taken), last, taken[last])
	}
}

func TestFleet_TakenLoadPortIsNamedAndNothingIsLeftOpen(t *testing.T) {
	t.Parallel()
	for range 50 {
		base := 15_000 + rand.IntN(15_000)
		taken := base + 5 // rank 1 of worker 1
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(taken))
		if err != nil {
			continue
		}
		defer l.Close()
		f, err := NewFleet(Options{Workers: 2, Ranks: 2, BasePort: base, Transport: TransportZMQ})
		if err != nil {
			t.Fatal(err)
		}
		err = f.Run(t.Context())
		if err != nil && !strings.Contains(err.Error(), strconv.Itoa(taken)) {
			t.Logf("ports from %d on: %v", base, err) // another one is somebody else's
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "worker 1") || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("error %v, want one that names worker and rank", err)
		}
		for port := base; port < taken; port++ {
			if c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
				c.Close()
				t.Errorf("port %d is still open", port)
			}
		}
		return
	}
	t.Error("found no six free neighbouring ports")
}

func TestFleet_BrokenLoadSocketsCostTheOtherSinksNothing(t *testing.T) {
	t.Parallel()
	f := startFleet(t, Options{Workers: 1, Ranks: 2, Transport: TransportZMQ})
	f.engines[0].mu.Lock()
	sockets := f.engines[0].sockets
	f.engines[0].mu.Unlock()
	if err := sockets.Close(); err != nil {
		t.Fatal(err)
	}
	page := func() loadsPage {
		var page loadsPage
		if code := get(t, f.URLs()[0]+"/v1/loads", &page); code != http.StatusOK {
			t.Fatalf("loads: %d", code)
		}
		return page
	}
	first := page().Loads[0].Timestamp
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); page().Loads[0].Timestamp < first+1 || f.State()[0].FailedPublish < 5; {
		if time.Now().After(deadline) {
			t.Fatalf("loads stand still, or no failure was counted: %+v", f.State()[0])
		}
		<-tick.C
	}
}

func TestStepOf(t *testing.T) {
	of := func(running, waiting, computed int64) load.RankLoad {
		var l load.RankLoad
		l.SetInt(load.NumRunningReqs, running)
		l.SetInt(load.NumWaitingReqs, waiting)
		l.SetInt(load.TotalPrefillUncachedTokens, computed)
		return l
	}
	for _, tc := range []struct {
		name        string
		before, now load.RankLoad
		want        pub.Step
	}{
		{"nothing to do", of(0, 0, 7), of(0, 0, 7), pub.Idle},
		{"nothing left to do", of(2, 0, 7), of(0, 0, 9), pub.Idle},
		{"nothing known before", load.RankLoad{}, of(0, 0, 0), pub.Idle},
		{"prompts were computed", of(2, 0, 7), of(2, 1, 9), pub.Prefill},
		{"tokens were made", of(2, 1, 7), of(3, 0, 7), pub.Decode},
		{"nothing can be run", of(0, 3, 7), of(0, 4, 7), pub.Stalled},
	} {
		if got := stepOf(&tc.before, &tc.now); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
