// Package ranktest runs tests on several ranks: goroutines of one process, each with a process group of its own. They are
// quick to start and deterministic; what is global to a process (memory, the default generator, being killed) needs
// processes.
package ranktest

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gofsdp/gofsdp/dist"
)

// Timeout bounds a rank's collectives.
const Timeout = 60 * time.Second

// Run calls f on size ranks at the same time and fails the test with their errors. f must not use t from the rank's
// goroutine: it returns errors.
func Run(t testing.TB, size int, f func(ctx context.Context, g dist.Group) error) {
	t.Helper()
	if err := Ranks(t.Context(), size, f); err != nil {
		t.Fatal(err)
	}
}

// Ranks calls f on size ranks at the same time and returns the first error.
func Ranks(ctx context.Context, size int, f func(ctx context.Context, g dist.Group) error) error {
	store, err := dist.NewHashStore()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for rank := range size {
		group.Go(func() (err error) {
			runtime.LockOSThread() // a rank's work stays on one thread
			defer runtime.UnlockOSThread()
			defer func() {
				if v := recover(); v != nil {
					err = fmt.Errorf("rank %d panicked: %v\n%s", rank, v, debug.Stack())
				}
			}()
			g, err := dist.NewGloo(ctx, store, rank, size, dist.GlooConfig{Timeout: Timeout})
			if err != nil {
				return err
			}
			defer g.Close(ctx)
			if err := f(ctx, g); err != nil {
				return fmt.Errorf("rank %d: %w", rank, err)
			}
			return g.Barrier(ctx)
		})
	}
	return group.Wait()
}
