package pub

import (
	"context"
	"testing"
)

// BenchmarkPublish is what a scheduler loop pays: for a step whose value goes out, and for one between two looks.
func BenchmarkPublish(b *testing.B) {
	for _, tc := range []struct {
		name string
		step Step
	}{{"sent", Idle}, {"between looks", Decode}} {
		b.Run(tc.name, func(b *testing.B) {
			p, err := New(Options{})
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error, 1)
			go func() { done <- p.Run(ctx) }()
			e, err := p.Bind(ctx, Binding{Range: Range{Host: "127.0.0.1", Ranks: 8}, Topic: "load", Every: 1 << 30})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			n := int64(0)
			for b.Loop() {
				n++
				l := loadOf(int(n%8), n)
				if err := e.Publish(&l, tc.step); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(e.Stats().Published)/float64(n), "messages/op")
			cancel()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}
