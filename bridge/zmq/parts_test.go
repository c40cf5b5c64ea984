package zmq

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/bridge/zmq/zmqtest"
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
