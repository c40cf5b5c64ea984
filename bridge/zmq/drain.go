package zmq

/*
#cgo pkg-config: libzmq
#cgo noescape lm_drain
#cgo nocallback lm_drain
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <zmq.h>

typedef struct {
	int64_t sequence;
	int32_t length;
	uint32_t messages;
	uint32_t good;
	uint32_t rejected[3];
	int32_t drained;
	int32_t error;
} lm_drained;

static int lm_frame(void *socket, zmq_msg_t *frame) {
	int rc;
	do
		rc = zmq_msg_recv(frame, socket, ZMQ_DONTWAIT);
	while (rc < 0 && errno == EINTR);
	return rc;
}

// Reasons as in reject.go, -1 for a good message, -2 for none. What is read last stays in frame.
static int lm_message(void *socket, zmq_msg_t *frame, const char *topic, int topic_length, int64_t *sequence, int *error) {
	int n = 1, topic_ok, sequence_ok = 0;
	if (lm_frame(socket, frame) < 0) {
		*error = errno == EAGAIN ? 0 : errno;
		return -2;
	}
	int size = (int)zmq_msg_size(frame);
	if (topic_length >= 0)
		topic_ok = size == topic_length && memcmp(zmq_msg_data(frame), topic, size) == 0;
	else
		topic_ok = size == 0 || (size == 4 && memcmp(zmq_msg_data(frame), "load", 4) == 0);
	while (zmq_msg_more(frame)) {
		// All frames of a message are there when the first is.
		if (lm_frame(socket, frame) < 0) {
			*error = errno;
			return -2;
		}
		if (++n == 2 && zmq_msg_size(frame) == 8) {
			const unsigned char *b = zmq_msg_data(frame);
			uint64_t v = 0;
			for (int i = 0; i < 8; i++)
				v = v << 8 | b[i];
			sequence_ok = v >> 63 == 0;
			*sequence = (int64_t)v;
		}
	}
	if (n != 3)
		return 1;
	if (!topic_ok)
		return 0;
	return sequence_ok ? -1 : 2;
}

static void lm_drain(void *socket, int limit, const char *topic, int topic_length, unsigned char *buffer, int capacity, lm_drained *d) {
	zmq_msg_t frame, newest;
	zmq_msg_init(&frame);
	zmq_msg_init(&newest);
	memset(d, 0, sizeof *d);
	d->length = -1;
	while ((int)d->messages < limit) {
		int64_t sequence = 0;
		int error = 0, reason = lm_message(socket, &frame, topic, topic_length, &sequence, &error);
		if (reason == -2) {
			d->error = error;
			d->drained = 1;
			break;
		}
		d->messages++;
		if (reason >= 0) {
			d->rejected[reason]++;
			continue;
		}
		d->good++;
		d->sequence = sequence;
		zmq_msg_move(&newest, &frame);
	}
	if (d->good > 0) {
		size_t size = zmq_msg_size(&newest);
		d->length = (int)size;
		if (size <= (size_t)capacity)
			memcpy(buffer, zmq_msg_data(&newest), size);
	}
	zmq_msg_close(&newest);
	zmq_msg_close(&frame);
}
*/
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"
)

// drainLimit bounds what one visit reads from one socket, so that a flood on one cannot starve the others.
const drainLimit = 64

// drained is what one visit to a socket brought.
type drained struct {
	messages int    // whole messages, good or not
	good     int    // messages of three frames with our topic and a sequence
	payload  []byte // of the newest good one; valid until the next visit. nil: none was good
	sequence int64  // of the newest good one
	empty    bool   // nothing is left to read, so the next message raises an edge
	rejected [ReasonPayload]int
}

// drain reads what a socket has, up to drainLimit messages, in one crossing into C: per message and frame that would cost
// more than decoding. Only the newest good message is copied out. Messages of other topics do not hide a good one before
// them.
func drain(socket unsafe.Pointer, topic string, topicKnown bool, buffer []byte) (drained, error) {
	var d C.lm_drained
	length := C.int(-1)
	if topicKnown {
		length = C.int(len(topic))
	}
	C.lm_drain(socket, drainLimit, (*C.char)(unsafe.Pointer(unsafe.StringData(topic))), length,
		(*C.uchar)(unsafe.Pointer(unsafe.SliceData(buffer))), C.int(len(buffer)), &d)
	out := drained{
		messages: int(d.messages), good: int(d.good), sequence: int64(d.sequence), empty: d.drained != 0,
		rejected: [ReasonPayload]int{int(d.rejected[ReasonTopic]), int(d.rejected[ReasonFrameCount]), int(d.rejected[ReasonSequenceFrame])},
	}
	if d.length >= 0 {
		// A frame above the buffer cannot come: libzmq ends the connection first.
		out.payload = buffer[:min(int(d.length), len(buffer))]
	}
	if d.error != 0 {
		return out, fmt.Errorf("receive: %w", syscall.Errno(d.error))
	}
	return out, nil
}
