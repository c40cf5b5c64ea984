package aggregator

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/load"
)

// doubts collects what Options.Doubt is called with.
type doubts struct {
	mu  sync.Mutex
	ids []string
}

func (d *doubts) add(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ids = append(d.ids, id)
}

func (d *doubts) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	ids := d.ids
	d.ids = nil
	return ids
}

func TestDoubt_NamesWorkersOfWhichRegistrationMayBeWrong(t *testing.T) {
	var d doubts
	inBubble(t, Options{Doubt: d.add}, func(t *testing.T, f *fleet) {
		f.SetWorkers([]load.Worker{w(1, func(w *load.Worker) { w.ExpectedRanks = 2 }), w(2)})
		expect := func(what string, want ...string) {
			t.Helper()
			f.settle()
			if got := d.take(); !slices.Equal(got, want) {
				t.Errorf("%s: doubts about %q, want %q", what, got, want)
			}
		}
		st := push()
		f.apply(st, report(1, "a", 1, rank(0), rank(1)))
		expect("the expected ranks")
		f.apply(st, report(1, "a", 2, rank(0)))
		f.apply(st, report(1, "a", 3, rank(0), rank(1), rank(2)))
		expect("other ranks (rule FR3)", "w1", "w1")
		r := report(1, "a", 4)
		r.Status = load.StatusUnreachable
		f.apply(st, r)
		expect("no ranks because there is no sample")
		other := push()
		f.apply(other, report(2, "a", 1, rank(0), rank(4)))
		expect("any ranks where none are expected")
		again := push()
		f.apply(again, report(2, "b", 1, rank(0), rank(4)))
		expect("another source instance", "w2")
		time.Sleep(10 * time.Second)
		expect("silence", "w1", "w2")
	})
}

// Nothing was taken for a worker before its transport was chosen, so it goes on under its handle.
func TestSetWorkers_ChoosingATransportKeepsTheHandle(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, f *fleet) {
		undecided := w(1, func(w *load.Worker) { w.Transport, w.Role, w.Models = load.TransportUnspecified, load.RoleRegular, nil })
		f.SetWorkers([]load.Worker{undecided})
		before := f.want("w1", load.Missing)
		f.SetWorkers([]load.Worker{w(1, func(w *load.Worker) { w.Transport, w.ExpectedRanks = load.TransportZMQ, 2 })})
		zmq := f.want("w1", load.Missing)
		if zmq.Handle != before.Handle || len(zmq.Ranks) != 2 || zmq.Window != DefaultZMQWindow || zmq.Worker.Role != load.RoleDecode {
			t.Errorf("after the choice: %+v, want the handle %d, 2 ranks and the window of ZMQ", zmq.WorkerStatus, before.Handle)
		}
		f.SetWorkers([]load.Worker{w(1)})
		if pushed := f.want("w1", load.Missing); pushed.Handle == before.Handle || len(pushed.Ranks) != 0 || pushed.Window != DefaultWindow {
			t.Errorf("after another choice: %+v, want another handle and no ranks", pushed.WorkerStatus)
		}
	})
}
