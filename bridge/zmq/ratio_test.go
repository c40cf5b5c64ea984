package zmq

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/bridge/zmq/zmqtest"
	"github.com/loadmonitor/loadmonitor/load"
)

// The test binary plays several parts, each in a process of its own: what one costs is then not mixed with the others.
const partVariable = "ZMQ_TEST_PART"

func TestMain(m *testing.M) {
	flag.Parse()
	// Most tests wait for something most of the time, so more of them than there are CPUs can run.
	_ = flag.Set("test.parallel", "8")
	var err error
	switch part := os.Getenv(partVariable); part {
	case "":
		os.Exit(m.Run())
	case "publish":
		err = playPublishers()
	case "bare", "bridge":
		err = playReceiver(part)
	case "follow":
		err = playFollower()
	default:
		err = fmt.Errorf("no such part: %s", part)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// play starts this binary in a part. The arguments come to it as ZMQ_TEST_ARGS.
func play(b testing.TB, part string, args ...string) (*exec.Cmd, io.WriteCloser, *bufio.Reader) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), partVariable+"="+part, "ZMQ_TEST_ARGS="+strings.Join(args, " "))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	return cmd, in, bufio.NewReaderSize(out, 1<<20)
}

// playPublishers binds, tells where on one line, and publishes until its input ends.
func playPublishers() error {
	args := strings.Fields(os.Getenv("ZMQ_TEST_ARGS"))
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	hz, err := strconv.ParseFloat(args[1], 64)
	if err != nil {
		return err
	}
	fleet, err := zmqtest.NewFleet(n)
	if err != nil {
		return err
	}
	defer fleet.Close()
	fmt.Println(strings.Join(fleet.Endpoints(), " "))
	stop := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	return fleet.Publish(hz, stop)
}

// playReceiver reads endpoints from its input and tells what receiving from them cost.
func playReceiver(part string) error {
	args := strings.Fields(os.Getenv("ZMQ_TEST_ARGS"))
	warm, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	measure, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	line, err := bufio.NewReaderSize(os.Stdin, 1<<20).ReadString('\n')
	if err != nil {
		return err
	}
	endpoints := strings.Fields(line)
	receive := zmqtest.BareReceive
	if part == "bridge" {
		receive = bridgeReceive
	}
	usage, err := receive(endpoints, warm, measure)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(usage)
}

// countingSink only counts.
type countingSink struct{ applied atomic.Int64 }

func (s *countingSink) ApplyRank(*load.Stream, *load.RankReport) error { s.applied.Add(1); return nil }
func (s *countingSink) Release(*load.Stream)                           {}
func (s *countingSink) SetRankNote(string, int32, string)              {}

func bridgeReceive(endpoints []string, warm, measure time.Duration) (zmqtest.Usage, error) {
	sink := &countingSink{}
	b, err := New(Options{Sink: sink})
	if err != nil {
		return zmqtest.Usage{}, err
	}
	b.SetTargets(targetsOf(endpoints))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	time.Sleep(warm)
	cpu, begin, before := cpuTime(), time.Now(), b.counts.messages.Load()
	applied := sink.applied.Load()
	time.Sleep(measure)
	u := zmqtest.Usage{Messages: int64(b.counts.messages.Load() - before), CPU: cpuTime() - cpu, Wall: time.Since(begin), RSS: int64(process("VmRSS:")) << 10}
	if handed := sink.applied.Load() - applied; handed < u.Messages*8/10 {
		return u, fmt.Errorf("only %d of %d messages were handed on: the machine is too busy to compare anything", handed, u.Messages)
	}
	cancel()
	return u, <-done
}

func targetsOf(endpoints []string) []Target {
	targets := make([]Target, len(endpoints))
	for i, e := range endpoints {
		host, port := split(e)
		targets[i] = Target{
			WorkerID: "w" + strconv.Itoa(i/8), Rank: int32(i % 8), Host: host, Port: port, Topic: "load", TopicKnown: true,
		}
	}
	return targets
}

// split takes tcp://host:port apart.
func split(endpoint string) (host string, port int) {
	at := strings.LastIndexByte(endpoint, ':')
	port, _ = strconv.Atoi(endpoint[at+1:])
	return strings.TrimPrefix(endpoint[:at], "tcp://"), port
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCPUPerMessage compares the CPU that the bridge takes for one message with a bare libzmq receive loop in C that
// only reads, over as many sockets, in the same run: publishers, loop and bridge are processes of their own, and loop and
// bridge subscribe to the same publishers at the same time, so both see the same machine. One run of it is a measurement
// of several seconds; more runs add up.
func BenchmarkCPUPerMessage(b *testing.B) {
	for _, size := range []struct {
		sockets int
		hz      float64
		warm    string // until every socket is connected on a busy machine
	}{{1024, 10, "5s"}, {8192, 1, "25s"}} {
		b.Run(fmt.Sprintf("sockets=%d/hz=%v", size.sockets, size.hz), func(b *testing.B) {
			publishers := min(size.sockets, 1024)
			pub, pubIn, pubOut := play(b, "publish", strconv.Itoa(publishers), fmt.Sprint(size.hz))
			endpoints, err := pubOut.ReadString('\n')
			if err != nil {
				b.Fatal(err)
			}
			endpoints = strings.Repeat(strings.TrimSpace(endpoints)+" ", size.sockets/publishers) + "\n"
			var total [2]zmqtest.Usage
			for b.Loop() {
				var usage [2]zmqtest.Usage
				var cmds [2]*exec.Cmd
				var outs [2]*bufio.Reader
				for i, part := range []string{"bare", "bridge"} {
					cmd, in, out := play(b, part, size.warm, "10s")
					io.WriteString(in, endpoints)
					cmds[i], outs[i] = cmd, out
				}
				for i := range cmds {
					if err := json.NewDecoder(outs[i]).Decode(&usage[i]); err != nil {
						b.Fatal(err)
					}
					if err := cmds[i].Wait(); err != nil {
						b.Fatal(err)
					}
					total[i].Messages += usage[i].Messages
					total[i].CPU += usage[i].CPU
					total[i].RSS += usage[i].RSS
				}
			}
			pubIn.Close()
			if err := pub.Wait(); err != nil {
				b.Fatal(err)
			}
			bare, bridge := total[0].PerMessage(), total[1].PerMessage()
			b.ReportMetric(float64(bare.Nanoseconds()), "bare-ns/msg")
			b.ReportMetric(float64(bridge.Nanoseconds()), "bridge-ns/msg")
			b.ReportMetric(float64(bridge)/float64(bare), "ratio")
			b.ReportMetric(float64(total[1].Messages)/float64(b.N)/10, "msg/s")
			b.ReportMetric(float64(total[1].RSS-total[0].RSS)/float64(b.N)/float64(size.sockets), "more-B/rank")
			b.ReportMetric(0, "ns/op")
		})
	}
}
