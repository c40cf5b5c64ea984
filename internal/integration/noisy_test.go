package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/loadmonitor/loadmonitor/aggregator"
	"github.com/loadmonitor/loadmonitor/client"
	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
	"github.com/loadmonitor/loadmonitor/load"
)

// Case H4 on a smaller scale: one source sends 2,000 reports a second on 20 streams of one connection. Workers that report
// once a second stay younger than 1.5 s, and versions come no more often than the publish interval allows.
func TestH4_NoisySourceBesideOthers(t *testing.T) {
	const normal, noisy, length = 5, 20, 3 * time.Second
	list := make([]load.Worker, normal+noisy)
	for i := range list {
		list[i] = decoder()
		list[i].ID, list[i].Origin = fmt.Sprintf("w%02d", i), fmt.Sprintf("10.9.1.%d:30000", i)
		list[i].URL = "http://" + list[i].Origin
	}
	of := func(i int, seq uint64) *modelgatewaypb.LoadReport {
		r := sane(fmt.Sprint("src", i), seq, rank(0, int64(seq%50)))
		r.Worker.WorkerAddr = list[i].URL
		return r
	}
	inBubble(t, list, func(t *testing.T, m *whole) {
		router := m.watch(client.Options{})
		open, end := context.WithCancel(context.Background())
		defer end()
		ctx, cancel := context.WithTimeout(open, length)
		defer cancel()
		var sending sync.WaitGroup
		every := func(i int, offset, interval time.Duration, send func(*modelgatewaypb.LoadReport) error) {
			sending.Go(func() {
				time.Sleep(offset)
				for seq := uint64(1); ctx.Err() == nil; seq++ {
					if err := send(of(i, seq)); err != nil {
						t.Errorf("worker %d: %v", i, err)
						return
					}
					time.Sleep(interval)
				}
			})
		}
		for i := range normal {
			every(i, time.Duration(i)*time.Millisecond, time.Second, m.engine().stream.Send)
		}
		settle()
		shared := modelgatewaypb.NewLoadMonitorServiceClient(m.dial("noisy"))
		for i := normal; i < len(list); i++ {
			stream, err := shared.Report(open)
			if err != nil {
				t.Fatal(err)
			}
			every(i, time.Duration(i-normal)*500*time.Microsecond, 10*time.Millisecond, stream.Send)
		}
		begun, first := time.Now(), m.Current().Snapshot.Version
		for ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond)
			v := router.View()
			for i := range normal {
				w, _ := v.Worker(list[i].ID)
				if age, ok := w.Age(time.Now()); !ok || age >= 1500*time.Millisecond || w.Freshness != load.Fresh {
					t.Fatalf("worker %d is %s, %v old", i, w.Freshness, age)
				}
			}
		}
		took, versions := time.Since(begun), m.Current().Snapshot.Version-first
		sending.Wait()
		if most := uint64(took/aggregator.DefaultPublishInterval) + 1; versions > most || versions < most/2 {
			t.Errorf("%d versions in %v, want at most %d, and many", versions, took, most)
		}
		if n := accepted(m); n < 5000 {
			t.Errorf("%v reports were accepted of about 6,000", n)
		}
	})
}

// accepted returns how many reports the monitor counts as accepted.
func accepted(m *whole) (n float64) {
	for _, family := range m.Metrics() {
		if family.Name == "reports_accepted_total" {
			family.Collect(func(v float64, _ ...load.Label) { n = v })
		}
	}
	return n
}
