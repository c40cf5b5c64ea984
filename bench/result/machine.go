package result

import (
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// Machine is where and with what a report was made.
type Machine struct {
	CPU      string            `json:"cpu"`
	CPUs     int               `json:"cpus"`
	MemoryMB int               `json:"memory_mb"`
	OS       string            `json:"os"`
	Versions map[string]string `json:"versions"` // of Go, the product and the libraries that matter
	// Load is the machine's own load average just before and just after, which tells whether it was ours alone.
	LoadBefore float64 `json:"load_before"`
	LoadAfter  float64 `json:"load_after"`
}

// modules are the libraries whose versions change results.
var modules = []string{"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/prometheus/common", "github.com/pebbe/zmq4"}

// ThisMachine describes the machine and this program.
func ThisMachine() Machine {
	m := Machine{CPUs: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Versions: map[string]string{"go": runtime.Version()}}
	m.CPU = field("/proc/cpuinfo", "model name")
	if kb, err := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB")); err == nil {
		m.MemoryMB = kb / 1024
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.OS += " " + strings.TrimSpace(string(release))
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			for _, name := range modules {
				if dep.Path == name {
					m.Versions[name] = dep.Version
				}
			}
		}
	}
	m.Versions["loadmonitor"] = output("git", "describe", "--tags", "--always", "--dirty")
	m.Versions["libzmq"] = output("pkg-config", "--modversion", "libzmq")
	for name, v := range m.Versions {
		if v == "" {
			delete(m.Versions, name)
		}
	}
	return m
}

// LoadAverage returns the load average of the last minute; 0 where the system has none.
func LoadAverage() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

// field returns the first value of a key in a file of lines "key : value".
func field(file, key string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func output(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
