// Package zmqtest holds what measurements and tests of the ZMQ bridge stand beside: a bare receive loop in C as the
// ceiling, and publishers. Nothing of the product imports it.
package zmqtest

/*
#cgo pkg-config: libzmq
#cgo noescape bare_collect
#cgo nocallback bare_collect
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

typedef struct {
	void *context;
	void **sockets;
	int n;
	int ep;
	struct epoll_event event[256];
	int next, events; // which of them are to be read
	zmq_msg_t frame;
	int held; // the frame did not fit and comes next
} bare;

static int bare_open(bare *b, char **endpoints, int n) {
	int zero = 0, hwm = 64;
	b->context = zmq_ctx_new();
	zmq_ctx_set(b->context, ZMQ_MAX_SOCKETS, n + 16);
	b->sockets = calloc(n, sizeof *b->sockets);
	b->ep = epoll_create1(EPOLL_CLOEXEC);
	zmq_msg_init(&b->frame);
	for (b->n = 0; b->n < n;) {
		void *s = zmq_socket(b->context, ZMQ_SUB);
		int fd;
		size_t size = sizeof fd;
		if (!s)
			return errno;
		b->sockets[b->n++] = s;
		if (zmq_setsockopt(s, ZMQ_RCVHWM, &hwm, sizeof hwm) || zmq_setsockopt(s, ZMQ_LINGER, &zero, sizeof zero) ||
		    zmq_setsockopt(s, ZMQ_SUBSCRIBE, "load", 4) || zmq_connect(s, endpoints[b->n - 1]) ||
		    zmq_getsockopt(s, ZMQ_FD, &fd, &size))
			return errno;
		struct epoll_event e = {.events = EPOLLIN | EPOLLET, .data.ptr = s};
		if (epoll_ctl(b->ep, EPOLL_CTL_ADD, fd, &e))
			return errno;
	}
	return 0;
}

static int64_t bare_now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

// Waits for edges and reads those sockets empty, until the time is over or no more fits. The last frames of the messages
// stand one after another in the buffer, message i up to ends[i]. Returns how many there are.
static int bare_collect(bare *b, int64_t time_us, unsigned char *buffer, int capacity, int *ends, int most) {
	int messages = 0, end = 0;
	for (int64_t until = bare_now() + time_us; bare_now() < until;) {
		if (b->next == b->events) {
			b->next = 0;
			b->events = epoll_wait(b->ep, b->event, sizeof b->event / sizeof *b->event, 10);
			if (b->events < 0)
				b->events = 0;
		}
		for (; b->next < b->events; b->next++) {
			for (;;) {
				if (!b->held && zmq_msg_recv(&b->frame, b->event[b->next].data.ptr, ZMQ_DONTWAIT) < 0)
					break;
				b->held = 0;
				if (zmq_msg_more(&b->frame))
					continue;
				size_t size = zmq_msg_size(&b->frame);
				if (messages == most || size > (size_t)(capacity - end)) {
					b->held = 1;
					return messages;
				}
				memcpy(buffer + end, zmq_msg_data(&b->frame), size);
				ends[messages++] = end += (int)size;
			}
		}
	}
	return messages;
}

static void bare_close(bare *b) {
	for (int i = 0; i < b->n; i++)
		zmq_close(b->sockets[i]);
	zmq_msg_close(&b->frame);
	zmq_ctx_term(b->context);
	free(b->sockets);
	close(b->ep);
}
*/
import "C"

import (
	"fmt"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// Usage is what receiving cost.
type Usage struct {
	Messages int64
	CPU      time.Duration // of the whole process
	Wall     time.Duration
}

// How much the bare loop collects before its payloads are looked at: some tens of milliseconds' worth, so that the loop is
// hardly ever left and what it collects is still in the cache.
const (
	bareBytes    = 64 << 10
	bareMessages = 1 << 10
)

// BareReceive is the ceiling: as little as one can do with libzmq to receive from as many endpoints, one socket each, and
// have the payloads looked at: take gets each of them, valid until it returns. It warms up, measures, and returns what the
// measured time cost. It takes the calling thread until then.
func BareReceive(endpoints []string, warm, measure time.Duration, take func(payload []byte)) (u Usage, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	list := C.malloc(C.size_t(len(endpoints)+1) * C.size_t(unsafe.Sizeof((*C.char)(nil))))
	defer C.free(list)
	names := unsafe.Slice((**C.char)(list), len(endpoints))
	for i, e := range endpoints {
		names[i] = C.CString(e)
		defer C.free(unsafe.Pointer(names[i]))
	}
	b := (*C.bare)(C.calloc(1, C.sizeof_bare))
	defer C.free(unsafe.Pointer(b))
	failed := C.bare_open(b, (**C.char)(list), C.int(len(endpoints)))
	defer C.bare_close(b)
	if failed != 0 {
		return u, fmt.Errorf("bare receive: %w", syscall.Errno(failed))
	}

	buffer, ends := make([]byte, bareBytes), make([]C.int, bareMessages)
	collect := func(until time.Time) (messages int64) {
		for left := time.Until(until); left > 0; left = time.Until(until) {
			n := C.bare_collect(b, C.int64_t(left.Microseconds()), (*C.uchar)(&buffer[0]), bareBytes, &ends[0], bareMessages)
			start := C.int(0)
			for _, end := range ends[:n] {
				take(buffer[start:end])
				start = end
			}
			messages += int64(n)
		}
		return messages
	}
	collect(time.Now().Add(warm))
	begin, cpu := time.Now(), cpuTime()
	u.Messages = collect(begin.Add(measure))
	u.CPU, u.Wall = cpuTime()-cpu, time.Since(begin)
	return u, nil
}

// cpuTime is the CPU that the process has taken.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
