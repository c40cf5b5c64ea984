package drive

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	loadmonitorpb "github.com/loadmonitor/loadmonitor/gen/loadmonitor/v1"
)

// registering is how many requests are under way at once: the monitor takes in many workers in one pass.
const registering = 128

// Register adds a worker for each URL, with the id that ids gives for its number. When one is refused the others are taken
// back.
func Register(ctx context.Context, conn *grpc.ClientConn, urls []string, ranks int, id func(i int) string) error {
	registry := loadmonitorpb.NewRegistryServiceClient(conn)
	err := each(ctx, len(urls), func(ctx context.Context, i int) error {
		spec := loadmonitorpb.WorkerSpec_builder{Id: id(i), Url: urls[i], ExpectedRanks: uint32(ranks)}.Build()
		_, err := registry.RegisterWorker(ctx, loadmonitorpb.RegisterWorkerRequest_builder{Worker: spec}.Build())
		if err != nil {
			return fmt.Errorf("register %s: %w", urls[i], err)
		}
		return nil
	})
	if err != nil {
		return errors.Join(err, Deregister(context.WithoutCancel(ctx), conn, len(urls), id))
	}
	return nil
}

// Deregister removes the workers that Register added; those that are not there do no harm.
func Deregister(ctx context.Context, conn *grpc.ClientConn, n int, id func(i int) string) error {
	registry := loadmonitorpb.NewRegistryServiceClient(conn)
	return each(ctx, n, func(ctx context.Context, i int) error {
		_, err := registry.DeregisterWorker(ctx, loadmonitorpb.DeregisterWorkerRequest_builder{Id: id(i)}.Build())
		if err != nil && status.Code(err) != codes.NotFound {
			return fmt.Errorf("remove %s: %w", id(i), err)
		}
		return nil
	})
}

// each calls f for every number below n, several at once, until one fails.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(registering, n) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
