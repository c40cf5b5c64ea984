package zmq

import "fmt"

// Reason is why a message is counted and dropped: a label of metrics, from the fixed set below (rule LIFE4).
type Reason uint8

const (
	// ReasonTopic: the topic frame is not exactly the one subscribed to. A subscription is a prefix match, so others arrive.
	ReasonTopic Reason = iota
	// ReasonFrameCount: not three frames.
	ReasonFrameCount
	// ReasonSequenceFrame: the second frame is not eight bytes, or they are negative as a signed number.
	ReasonSequenceFrame
	// ReasonPayload: the third frame is none of the two forms of payload, or a value in it is none of ours.
	ReasonPayload
	numReasons
)

var reasonLabels = [numReasons]string{"topic", "frame_count", "sequence_frame", "payload"}

// String returns the label.
func (r Reason) String() string { return reasonLabels[r] }

// RejectError says why a message is dropped. It holds no byte of the message.
type RejectError struct {
	Reason Reason
	// Field is the field at fault, by its own name; empty: the message as a whole.
	Field  string
	Detail string
}

func (e *RejectError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s: %s", e.Reason, e.Detail)
	}
	return fmt.Sprintf("%s: %s %s", e.Reason, e.Field, e.Detail)
}

func rejectPayload(field, detail string) error {
	return &RejectError{Reason: ReasonPayload, Field: field, Detail: detail}
}
