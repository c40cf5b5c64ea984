package load

import (
	"errors"
	"testing"
	"testing/synctest"
)

func TestStream_EndTellsOnceAndTheFirstReasonCounts(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	synctest.Test(t, func(t *testing.T) {
		var told []error
		st := NewStreamFunc(TransportPush, func(err error) { told = append(told, err) })
		if err := st.Err(); err != nil {
			t.Errorf("a new stream ended with %v", err)
		}
		st.End(first)
		st.End(second)
		if err := st.Leave(second); err != first {
			t.Errorf("left with %v, want %v", err, first)
		}
		if len(told) != 1 || told[0] != first || st.Err() != first {
			t.Errorf("told %v, and ended with %v", told, st.Err())
		}
	})
}

func TestStream_LeaveTellsNobody(t *testing.T) {
	done, late := errors.New("done"), errors.New("late")
	synctest.Test(t, func(t *testing.T) {
		st := NewStreamFunc(TransportPush, func(err error) { t.Errorf("told of %v", err) })
		if err := st.Leave(done); err != done {
			t.Errorf("left with %v", err)
		}
		st.End(late)
		synctest.Wait()
		if err := st.Err(); err != done {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestStream_LeaveWaitsForWhoIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold, left := make(chan struct{}), false
		st := NewStreamFunc(TransportPush, func(error) { <-hold })
		st.End(errors.New("end"))
		go func() {
			_ = st.Leave(errors.New("leave"))
			left = true
		}()
		synctest.Wait()
		if left {
			t.Error("left while somebody was being told")
		}
		close(hold)
		synctest.Wait()
		if !left {
			t.Error("did not leave")
		}
	})
}

func TestStream_WithoutAFunctionEndsAsWell(t *testing.T) {
	reason := errors.New("reason")
	st := NewStream(TransportZMQ)
	st.End(reason)
	if err := st.Leave(errors.New("leave")); err != reason {
		t.Errorf("left with %v", err)
	}
}
