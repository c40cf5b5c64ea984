// Package zmqtest holds what measurements and tests of the ZMQ bridge stand beside: a bare receive loop in C as the
// ceiling, and publishers. Nothing of the product imports it.
package zmqtest

/*
#cgo pkg-config: libzmq
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <zmq.h>

typedef struct {
	int64_t messages;
	int64_t cpu_us;
	int64_t wall_us;
	int64_t rss_kb;
	int failed;
} bare_result;

static int64_t bare_wall(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static int64_t bare_cpu(void) {
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000LL + u.ru_utime.tv_usec + u.ru_stime.tv_usec;
}

static int64_t bare_rss(void) {
	char line[256];
	long kb = 0;
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "VmRSS: %ld", &kb) == 1)
			break;
	if (f)
		fclose(f);
	return kb;
}

// Waits for edges, reads each socket empty, and does nothing with what it reads.
static bare_result bare_receive(char **endpoints, int n, int64_t warm_us, int64_t measure_us) {
	bare_result r = {0};
	void *context = zmq_ctx_new();
	zmq_ctx_set(context, ZMQ_MAX_SOCKETS, n + 16);
	void **sockets = calloc(n, sizeof *sockets);
	int ep = epoll_create1(EPOLL_CLOEXEC), zero = 0, hwm = 64;
	for (int i = 0; i < n; i++) {
		void *s = sockets[i] = zmq_socket(context, ZMQ_SUB);
		int fd;
		size_t size = sizeof fd;
		if (!s || zmq_setsockopt(s, ZMQ_RCVHWM, &hwm, sizeof hwm) || zmq_setsockopt(s, ZMQ_LINGER, &zero, sizeof zero) ||
		    zmq_setsockopt(s, ZMQ_SUBSCRIBE, "load", 4) || zmq_connect(s, endpoints[i]) ||
		    zmq_getsockopt(s, ZMQ_FD, &fd, &size)) {
			r.failed = errno;
			return r;
		}
		struct epoll_event e = {.events = EPOLLIN | EPOLLET, .data.ptr = s};
		if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e)) {
			r.failed = errno;
			return r;
		}
	}
	zmq_msg_t m;
	zmq_msg_init(&m);
	int64_t begin = bare_wall() + warm_us, end = begin + measure_us, cpu = 0, start = 0, now;
	struct epoll_event events[256];
	while ((now = bare_wall()) < end) {
		if (!start && now >= begin) {
			start = now;
			cpu = bare_cpu();
			r.messages = 0;
		}
		int k = epoll_wait(ep, events, 256, 10);
		for (int i = 0; i < k; i++)
			while (zmq_msg_recv(&m, events[i].data.ptr, ZMQ_DONTWAIT) >= 0)
				r.messages += !zmq_msg_more(&m);
	}
	r.cpu_us = bare_cpu() - cpu;
	r.wall_us = now - start;
	r.rss_kb = bare_rss();
	for (int i = 0; i < n; i++)
		zmq_close(sockets[i]);
	zmq_ctx_term(context);
	zmq_msg_close(&m);
	free(sockets);
	return r;
}
*/
import "C"

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"
)

// Usage is what receiving cost.
type Usage struct {
	Messages int64
	CPU      time.Duration // of the whole process
	Wall     time.Duration
	RSS      int64 // bytes of the whole process, with all its sockets open
}

// PerMessage is the CPU that one message took.
func (u Usage) PerMessage() time.Duration {
	if u.Messages == 0 {
		return 0
	}
	return u.CPU / time.Duration(u.Messages)
}

// BareReceive is the ceiling: as little as one can do with libzmq to receive from as many endpoints, one socket each. It
// warms up, measures, and returns what the measured time cost. It takes the calling thread until then.
func BareReceive(endpoints []string, warm, measure time.Duration) (Usage, error) {
	list := C.malloc(C.size_t(len(endpoints)+1) * C.size_t(unsafe.Sizeof((*C.char)(nil))))
	defer C.free(list)
	names := unsafe.Slice((**C.char)(list), len(endpoints))
	for i, e := range endpoints {
		names[i] = C.CString(e)
		defer C.free(unsafe.Pointer(names[i]))
	}
	r := C.bare_receive((**C.char)(list), C.int(len(endpoints)), C.int64_t(warm.Microseconds()), C.int64_t(measure.Microseconds()))
	if r.failed != 0 {
		return Usage{}, fmt.Errorf("bare receive: %w", syscall.Errno(r.failed))
	}
	return Usage{
		Messages: int64(r.messages), CPU: time.Duration(r.cpu_us) * time.Microsecond, Wall: time.Duration(r.wall_us) * time.Microsecond,
		RSS: int64(r.rss_kb) << 10,
	}, nil
}
