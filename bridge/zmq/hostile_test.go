package zmq

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// Case G3: messages of a wrong shape are counted by reason, and the good one after them is taken.
func TestBridge_BadFramesAreCounted(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	p := socket(t, c, anyPort)
	o := steady(s)
	b, _ := start(t, o, target("w", 0, p.Endpoint()))
	n := meet(t, p, s, "w", 0)
	topic, sequence, good := []byte("load"), binary.BigEndian.AppendUint64(nil, 77), running(1)
	bad := map[Reason][][][]byte{
		ReasonFrameCount: {
			{topic}, {topic, good}, {topic, sequence, good, nil}, {topic, sequence, good, good, good, good, good, good, good},
		},
		ReasonSequenceFrame: {
			{topic, nil, good}, {topic, sequence[:4], good}, {topic, sequence[:7], good}, {topic, append(bytes.Clone(sequence), 1), good},
			{topic, bytes.Repeat([]byte{0xff}, 8), good},
		},
		ReasonPayload: {{topic, sequence, nil}, {topic, sequence, []byte("\x2a")}, {topic, sequence, good[:20]}},
		// What does not begin with the topic never leaves the publisher.
		ReasonTopic: {{[]byte("load_debug"), sequence, good}, {[]byte("loads"), sequence, good}},
	}
	for reason, messages := range bad {
		for _, m := range messages {
			before := metric(t, b, "zmq_messages_rejected_total", reason.String())
			if err := p.SendFrames(m...); err != nil {
				t.Fatal(err)
			}
			s.await(t, "a message to be refused because of "+reason.String(), func() bool {
				return metric(t, b, "zmq_messages_rejected_total", reason.String()) == before+1
			})
		}
	}
	before := s.count("w", 0)
	if err := p.Send("load", n, running(5)); err != nil {
		t.Fatal(err)
	}
	got := s.awaitReports(t, "w", 0, before+1)
	if runningOf(&got[len(got)-1]) != 5 {
		t.Errorf("running %d, want 5", runningOf(&got[len(got)-1]))
	}
}

// Case F10: of what a prefix lets through only exactly the topic is decoded, and it does not hide a good message.
func TestBridge_OtherTopicsHideNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		known bool
		want  []string // topics that are taken
	}{
		{"advertised", true, []string{"load"}},
		{"not advertised", false, []string{"load", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, s := testContext(t), newRecorder()
			p := socket(t, ctx, anyPort)
			o := steady(s)
			to := target("w", 0, p.Endpoint())
			to.TopicKnown = c.known
			if !c.known {
				to.Topic = ""
			}
			start(t, o, to)
			n := meet(t, p, s, "w", 0)
			for i, taken := range c.want {
				for j, topic := range []string{taken, "load_debug", "loads"} {
					if err := p.Send(topic, n+int64(i), running(int64(10*i+j+1))); err != nil {
						t.Fatal(err)
					}
				}
				s.await(t, "topic "+taken, func() bool {
					got := s.reports[targetKey{"w", 0}]
					return runningOf(&got[len(got)-1]) == int64(10*i+1) && got[len(got)-1].Sequence == n+int64(i)
				})
			}
			for _, r := range s.awaitReports(t, "w", 0, 1) {
				if x := runningOf(&r) % 10; x > 1 {
					t.Errorf("a message of another topic was taken: running %d", runningOf(&r))
				}
			}
		})
	}
}

// Cases E7 and F10: a socket that publishes something else is named for that rank.
func TestBridge_WrongPublisherIsNamed(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	e := publish(t, c, anyPort, running(1))
	e.mu.Lock()
	e.topic = "kv-events"
	e.mu.Unlock()
	all := target("w", 1, e.endpoint)
	all.Topic, all.TopicKnown = "", false
	start(t, quick(s), target("w", 0, e.endpoint), all)
	s.awaitNote(t, "w", 0, "no load message")
	s.awaitNote(t, "w", 1, "only messages of other topics")
}

// Case G8: whatever a peer sends, no data is made of it, the rank says why, and others do not notice.
func TestBridge_HostilePeers(t *testing.T) {
	t.Parallel()
	hold := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	for _, c := range []struct {
		name      string
		handshake bool
		serve     func(c net.Conn)
		note      string
	}{
		{"huge length", true, func(c net.Conn) {
			c.Write(longHeader(0, 1<<62))
			hold(c)
		}, "no load message"},
		{"64 MB frame", true, func(c net.Conn) {
			c.Write(longHeader(0, 64<<20))
			zeros := make([]byte, 1<<20)
			for range 64 {
				if _, err := c.Write(zeros); err != nil {
					return
				}
			}
		}, "no load message"},
		{"slow megabyte", true, func(c net.Conn) {
			c.Write(append(longHeader(0, 1<<20), "0123456789"...))
			hold(c)
		}, "no load message"},
		{"frames without end", true, func(c net.Conn) {
			c.Write(frame(frameMore, []byte("load")))
			hold(c)
		}, "no load message"},
		{"command that is none", true, func(c net.Conn) {
			c.Write(frame(frameCommand, []byte("\xffnonsense")))
			hold(c)
		}, "no load message"},
		{"nesting bomb", true, func(c net.Conn) {
			b := append(frame(frameMore, []byte("load")), frame(frameMore, make([]byte, 8))...)
			b = append(b, longHeader(0, 5_000_000)...)
			c.Write(append(b, bytes.Repeat([]byte{0x91}, 5_000_000)...))
			hold(c)
		}, "no load message"},
		{"bomb within bounds", true, func(c net.Conn) {
			for i := range int64(1 << 40) {
				if _, err := c.Write(message("load", i, []byte("\xdd\xff\xff\xff\xff"))); err != nil {
					return
				}
				time.Sleep(enginePeriod)
			}
		}, "malformed"},
		{"web server", false, func(c net.Conn) {
			c.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
		}, "does not speak ZMTP"},
		{"nothing", false, hold, "sends no ZMTP greeting"},
		{"half a greeting", false, func(c net.Conn) { c.Write(greeting("NULL")[:30]) }, "ended the connection before its ZMTP greeting"},
		{"ends at once", false, func(c net.Conn) {}, "ended the connection before its ZMTP greeting"},
		{"old protocol", false, func(c net.Conn) {
			g := greeting("NULL")
			g[greetingMajor] = 2
			c.Write(g)
			hold(c)
		}, "speaks ZMTP 2"},
		{"other mechanism", false, func(c net.Conn) {
			c.Write(greeting("GSSAPI"))
			hold(c)
		}, "another security mechanism"},
		{"ends after the handshake", true, func(c net.Conn) {}, "no load message"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, s := testContext(t), newRecorder()
			e := publish(t, ctx, anyPort, running(1))
			p := serveRaw(t, c.handshake, c.serve)
			b, _ := start(t, quick(s), target("good", 0, e.endpoint), target("bad", 0, p.endpoint))
			s.awaitReports(t, "good", 0, 2)
			s.awaitNoted(t, "bad", 0, c.note)
			s.await(t, "it to be dialled again", func() bool {
				return metric(t, b, "zmq_dial_failures_total")+metric(t, b, "zmq_redials_total") >= 2 || strings.Contains(c.note, "malformed")
			})
			s.awaitMore(t, "good", 0)
			if n := s.count("bad", 0); n != 0 {
				t.Errorf("%d reports of a hostile peer", n)
			}
			if n := s.ended; n > 0 && metric(t, b, "zmq_connects_total") < 2 {
				t.Errorf("%d streams ended", n)
			}
		})
	}
}

// A peer that sends what was not subscribed to as fast as it can holds up nobody.
func TestBridge_FloodsHoldUpNobody(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, topic string }{{"of other topics", "other"}, {"of load", "load"}} {
		t.Run(c.name, func(t *testing.T) {
			ctx, s := testContext(t), newRecorder()
			e := publish(t, ctx, anyPort, running(1))
			var sent atomic.Int64
			p := serveRaw(t, true, func(conn net.Conn) {
				for {
					var batch []byte
					for range 100 {
						batch = append(batch, message(c.topic, sent.Add(1), running(sent.Load()))...)
					}
					if _, err := conn.Write(batch); err != nil {
						return
					}
				}
			})
			o := quick(s)
			o.Owners = 1
			b, _ := start(t, o, target("good", 0, e.endpoint), target("flood", 0, p.endpoint))
			s.awaitReports(t, "good", 0, 1)
			s.await(t, "the flood", func() bool { return sent.Load() > 20_000 })
			for range 3 {
				s.awaitMore(t, "good", 0)
			}
			if decoded, got := metric(t, b, "zmq_messages_decoded_total"), metric(t, b, "zmq_messages_total"); c.topic == "load" && decoded > got/5 {
				t.Errorf("decoded %v of %v messages", decoded, got)
			}
		})
	}
}

// Case F5: whatever is skipped, a message is never put together from parts of two.
func TestBridge_MessagesStayWhole(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	s.refuse = func(r *load.RankReport) error {
		time.Sleep(5 * time.Millisecond)
		if n := runningOf(r); n != r.Sequence {
			t.Errorf("payload %d with sequence %d", n, r.Sequence)
		}
		return nil
	}
	p := socket(t, c, anyPort)
	o := steady(s)
	b, _ := start(t, o, target("w", 0, p.Endpoint()))
	var n int64
	s.await(t, "messages to be skipped", func() bool {
		for range 100 {
			if err := p.Send("load", n, running(n)); err != nil {
				t.Fatal(err)
			}
			n++
		}
		return metric(t, b, "zmq_messages_conflated_total") > 1000
	})
	if err := p.Send("load", n, running(n)); err != nil {
		t.Fatal(err)
	}
	var newest int64
	s.await(t, "the newest message that arrived", func() bool {
		got := s.reports[targetKey{"w", 0}]
		last := got[len(got)-1].Sequence
		still := last == newest
		newest = last
		return still && float64(len(got)) == metric(t, b, "zmq_messages_decoded_total")
	})
}

// A rank that sends faster than the cap is decoded no more often than that, and its last message is handed on.
func TestBridge_RateCapDeliversTheLast(t *testing.T) {
	s := newRecorder()
	const burst, bursts = 50, 20
	ready := make(chan struct{})
	p := serveRaw(t, true, func(conn net.Conn) {
		n := int64(0)
		for range bursts {
			for range burst {
				n++
				conn.Write(message("load", n, running(n)))
			}
			time.Sleep(2 * time.Millisecond)
		}
		close(ready)
		_, _ = conn.Read(make([]byte, 1))
	})
	o := quick(s)
	o.RankInterval = 20 * time.Millisecond
	o.Silence = time.Minute
	b, _ := start(t, o, target("w", 0, p.endpoint))
	<-ready
	s.await(t, "the last message", func() bool {
		got := s.reports[targetKey{"w", 0}]
		return len(got) > 0 && runningOf(&got[len(got)-1]) == burst*bursts
	})
	got := s.awaitReports(t, "w", 0, 1)
	told := uint64(0)
	for _, r := range got {
		told += r.Conflated + 1
	}
	if told != burst*bursts || metric(t, b, "zmq_messages_total") != burst*bursts {
		t.Errorf("reports account for %d messages, %v received, want %d", told, metric(t, b, "zmq_messages_total"), burst*bursts)
	}
	if len(got) > burst*bursts/4 || metric(t, b, "zmq_messages_rate_capped_total") == 0 {
		t.Errorf("%d of %d messages decoded, capped %v times", len(got), burst*bursts, metric(t, b, "zmq_messages_rate_capped_total"))
	}
}
