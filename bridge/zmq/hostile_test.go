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
	all := target("w", 0, p.Endpoint())
	all.Topic, all.TopicKnown = "", false // what does not begin with a known topic never leaves the publisher
	b, _ := start(t, steady(s), all)
	n := meet(t, p, s, "w", 0)
	topic, sequence, good := []byte("load"), binary.BigEndian.AppendUint64(nil, 77), running(1)
	bad := map[Reason][][][]byte{
		ReasonFrameCount: {
			{topic}, {topic, good}, {topic, sequence, good, nil}, {topic, sequence, good, good, good, good, good, good, good},
		},
		ReasonSequenceFrame: {
			{topic, nil, good}, {topic, sequence[:4], good}, {topic, sequence[:7], good}, {topic, append(bytes.Clone(sequence), 1), good},
			{topic, bytes.Repeat([]byte{0xff}, 8), good}, {nil, nil, nil},
		},
		ReasonPayload: {{topic, sequence, nil}, {topic, sequence, []byte("\x2a")}, {topic, sequence, good[:20]}},
		ReasonTopic:   {{[]byte("load_debug"), sequence, good}, {[]byte("loads"), sequence, good}, {[]byte("x"), nil, nil}},
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

// Case G3: a rank that gets nothing but bad messages, of every kind, is one line in the log.
func TestBridge_BadFramesAreLoggedOnce(t *testing.T) {
	t.Parallel()
	c, s := testContext(t), newRecorder()
	p := socket(t, c, anyPort)
	var out safeBuffer
	o := steady(s)
	o.Logger = newTestLogger(&out)
	b, _ := start(t, o, target("w", 0, p.Endpoint()))
	topic, sequence := []byte("load"), make([]byte, 8)
	s.await(t, "many bad messages of each kind", func() bool {
		fewest := 1000.0
		for reason, frames := range [numReasons][][]byte{
			ReasonTopic: {[]byte("loads"), sequence, running(1)}, ReasonFrameCount: {topic}, ReasonSequenceFrame: {topic, nil, nil}, ReasonPayload: {topic, sequence, nil},
		} {
			if err := p.SendFrames(frames...); err != nil {
				t.Fatal(err)
			}
			fewest = min(fewest, metric(t, b, "zmq_messages_rejected_total", Reason(reason).String()))
		}
		return fewest >= 20
	})
	if n := strings.Count(out.String(), "\n"); n != 1 {
		t.Errorf("%d lines: %s", n, out.String())
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

// Cases G2 and G8: whatever a peer sends, no data is made of it, the rank says why, and others do not notice. What is too
// large does not even become a message.
func TestBridge_HostilePeers(t *testing.T) {
	t.Parallel()
	hold := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	head := append(frame(frameMore, []byte("load")), frame(frameMore, make([]byte, 8))...)
	// large sends frames and a last one that begins with what is given and is filled up with one byte.
	large := func(c net.Conn, frames []byte, size int, begin []byte, fill byte) {
		c.Write(append(append(bytes.Clone(frames), longHeader(0, uint64(size))...), begin...))
		chunk := bytes.Repeat([]byte{fill}, min(size, 1<<20))
		for left := size - len(begin); left > 0; {
			n, err := c.Write(chunk[:min(left, len(chunk))])
			if err != nil {
				return
			}
			left -= n
		}
	}
	for _, c := range []struct {
		name      string
		handshake bool
		serve     func(c net.Conn)
		note      string
		rejected  string // the only reason for which a message is rejected; empty: none is
	}{
		{"huge length", true, func(c net.Conn) {
			c.Write(longHeader(0, 1<<62))
			hold(c)
		}, "no load message", ""},
		{"64 MB topic", true, func(c net.Conn) { large(c, nil, 64<<20, []byte("load"), 0) }, "no load message", ""},
		{"64 MB payload", true, func(c net.Conn) { large(c, head, 64<<20, nil, 0) }, "no load message", ""},
		{"a byte too much", true, func(c net.Conn) { large(c, head, MaxMessageBytes+1, nil, 0) }, "no load message", ""},
		{"as much as is let in", true, func(c net.Conn) {
			large(c, head, MaxMessageBytes, nil, 0)
			hold(c)
		}, "malformed", "payload"},
		{"slow megabyte", true, func(c net.Conn) {
			c.Write(append(longHeader(0, 1<<20), "0123456789"...))
			hold(c)
		}, "no load message", ""},
		{"frames without end", true, func(c net.Conn) {
			c.Write(frame(frameMore, []byte("load")))
			hold(c)
		}, "no load message", ""},
		{"command that is none", true, func(c net.Conn) {
			c.Write(frame(frameCommand, []byte("\xffnonsense")))
			hold(c)
		}, "no load message", ""},
		{"nesting bomb", true, func(c net.Conn) {
			large(c, head, 5_000_000, nil, 0x91)
			hold(c)
		}, "no load message", ""},
		{"nesting bomb in a field", true, func(c net.Conn) {
			large(c, head, 5_000_000, []byte("\x81\xa1z"), 0x91)
			hold(c)
		}, "no load message", ""},
		{"bomb within bounds", true, func(c net.Conn) {
			for i := range int64(1 << 40) {
				if _, err := c.Write(message("load", i, []byte("\xdd\xff\xff\xff\xff"))); err != nil {
					return
				}
				time.Sleep(enginePeriod)
			}
		}, "malformed", "payload"},
		{"web server", false, func(c net.Conn) {
			c.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
		}, "does not speak ZMTP", ""},
		{"nothing", false, hold, "sends no ZMTP greeting", ""},
		{"half a greeting", false, func(c net.Conn) { c.Write(greeting("NULL")[:30]) }, "ended the connection before its ZMTP greeting", ""},
		{"ends at once", false, func(c net.Conn) {}, "ended the connection before its ZMTP greeting", ""},
		{"old protocol", false, func(c net.Conn) {
			g := greeting("NULL")
			g[greetingMajor] = 2
			c.Write(g)
			hold(c)
		}, "speaks ZMTP 2", ""},
		{"other mechanism", false, func(c net.Conn) {
			c.Write(greeting("GSSAPI"))
			hold(c)
		}, "another security mechanism", ""},
		{"ends after the handshake", true, func(c net.Conn) {}, "no load message", ""},
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
			for r := range numReasons {
				if n := metric(t, b, "zmq_messages_rejected_total", r.String()); (n > 0) != (c.rejected == r.String()) {
					t.Errorf("%v messages rejected because of %s, want only %q", n, r, c.rejected)
				}
			}
			s.mu.Lock()
			n := s.ended
			s.mu.Unlock()
			if n > 0 && metric(t, b, "zmq_connects_total") < 2 {
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

// Case F5: whatever is skipped, a message is never put together from parts of two, and the newest is shown.
func TestBridge_MessagesStayWhole(t *testing.T) {
	t.Parallel()
	s := newRecorder()
	s.refuse = func(r *load.RankReport) error {
		time.Sleep(5 * time.Millisecond)
		if n := runningOf(r); n != r.Sequence {
			t.Errorf("payload %d with sequence %d", n, r.Sequence)
		}
		return nil
	}
	newest, over := make(chan int64, 1), make(chan struct{})
	p := serveRaw(t, true, func(conn net.Conn) {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for n := int64(0); ; {
			var batch []byte
			for range 25 {
				n++
				batch = append(batch, message("load", n, running(n))...)
			}
			if _, err := conn.Write(batch); err != nil {
				return
			}
			select {
			case <-over:
				newest <- n
				_, _ = conn.Read(make([]byte, 1))
				return
			case <-tick.C:
			}
		}
	})
	b, _ := start(t, steady(s), target("w", 0, p.endpoint))
	s.await(t, "messages to be skipped", func() bool { return metric(t, b, "zmq_messages_conflated_total") > 1000 })
	close(over)
	sent := <-newest
	before := s.count("w", 0)
	s.await(t, "the newest message", func() bool {
		got := s.reports[targetKey{"w", 0}]
		return got[len(got)-1].Sequence == sent
	})
	// Each takes the consumer 5 ms, so this is a second.
	if n := s.count("w", 0) - before; n > 200 {
		t.Errorf("%d messages shown after the newest was sent", n)
	}
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
