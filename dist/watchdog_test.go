package dist_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/torch"
)

// ranks runs f on size goroutine ranks whose collectives may take timeout, and returns their errors.
func ranks(t *testing.T, size int, c dist.GlooConfig, f func(ctx context.Context, g *dist.Gloo) error) []error {
	t.Helper()
	store, err := dist.NewHashStore()
	require.NoError(t, err)
	c.ConnectTimeout = time.Minute
	var group errgroup.Group
	errs := make([]error, size)
	for rank := range size {
		group.Go(func() error {
			g, err := dist.NewGloo(t.Context(), store, rank, size, c)
			if err != nil {
				return err
			}
			errs[rank] = f(t.Context(), g)
			return g.Close(t.Context())
		})
	}
	require.NoError(t, group.Wait())
	return errs
}

// reduce is an all-reduce of n elements.
func reduce(ctx context.Context, g dist.Group, n int64) error {
	x := torch.Ones(torch.Float32, n)
	defer x.Free()
	return dist.Wait(ctx)(g.AllReduce(ctx, x, dist.Sum))
}

func TestWatchdogNamesTheRankThatDoesNotCome(t *testing.T) {
	const timeout = time.Second
	errs := ranks(t, 3, dist.GlooConfig{Timeout: timeout}, func(ctx context.Context, g *dist.Gloo) error {
		if err := reduce(dist.WithLabel(ctx, "layers.6"), g, 5); err != nil {
			return err
		}
		if g.Rank() == 1 {
			time.Sleep(2 * timeout) // it computes, and never comes
			err := g.Barrier(ctx)
			if !errors.Is(err, dist.ErrAborted) {
				return fmt.Errorf("rank 1 was not told: %w", err)
			}
			return err
		}
		start := time.Now()
		err := reduce(dist.WithLabel(ctx, "layers.7"), g, 4)
		if took := time.Since(start); took < timeout || took > 4*timeout {
			return fmt.Errorf("it took %v", took)
		}
		return err
	})
	for rank, err := range errs {
		var stall *dist.Stall
		require.ErrorAs(t, err, &stall, "rank %d", rank)
		require.ErrorIs(t, err, dist.ErrTimeout)
		require.Equal(t, []int{1}, stall.Missing())
		require.Equal(t, []dist.RankState{{Rank: 1, Last: `#1 all-reduce for "layers.6" of 5 elements`, Missing: true}}, stall.Ranks)
		require.Equal(t, dist.OpAllReduce, stall.Op)
		require.Equal(t, "layers.7", stall.Label)
		require.Equal(t, int64(2), stall.Seq)
		require.Contains(t, err.Error(), fmt.Sprintf("rank %d of 3", rank))
		require.Contains(t, err.Error(), `#2 for "layers.7": timed out after 1s; missing: ranks [1]`)
	}
}

func TestWatchdogNamesTheRankThatHasLeft(t *testing.T) {
	errs := ranks(t, 3, dist.GlooConfig{Timeout: 20 * time.Second}, func(ctx context.Context, g *dist.Gloo) error {
		if g.Rank() == 2 {
			return nil
		}
		return reduce(ctx, g, 4)
	})
	require.NoError(t, errs[2])
	for _, err := range errs[:2] {
		require.ErrorContains(t, err, "rank 2 has left the group")
		require.NotErrorIs(t, err, dist.ErrTimeout)
	}
}

// Where a rank runs another collective, or one of another size, every rank is told what differs: at once with the check, and
// otherwise when they have waited for each other for a while. Gloo alone would end the process, or mix up data.
func TestWhatDiffersIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		odd  func(ctx context.Context, g *dist.Gloo) error
		want string
	}{
		"another size":       {func(ctx context.Context, g *dist.Gloo) error { return reduce(ctx, g, 3) }, "all-reduce of 3 elements of float32 (sum)"},
		"another collective": {func(ctx context.Context, g *dist.Gloo) error { return g.Barrier(ctx) }, "#2 barrier"},
		"another reduction": {func(ctx context.Context, g *dist.Gloo) error {
			x := torch.Ones(torch.Float32, 4)
			defer x.Free()
			return dist.Wait(ctx)(g.AllReduce(ctx, x, dist.Max))
		}, "all-reduce of 4 elements of float32 (maximum)"},
		"another type": {func(ctx context.Context, g *dist.Gloo) error {
			x := torch.Ones(torch.Float64, 4)
			defer x.Free()
			return dist.Wait(ctx)(g.Broadcast(ctx, x, 1))
		}, "broadcast of 4 elements of float64 from rank 1"},
	} {
		for _, check := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, check %v", name, check), func(t *testing.T) {
				t.Parallel()
				start := time.Now()
				errs := ranks(t, 3, dist.GlooConfig{Timeout: 20 * time.Second, Check: check}, func(ctx context.Context, g *dist.Gloo) error {
					if err := reduce(ctx, g, 7); err != nil {
						return err
					}
					if g.Rank() == 1 {
						return c.odd(ctx, g)
					}
					return reduce(dist.WithLabel(ctx, "layers.7"), g, 4)
				})
				require.Less(t, time.Since(start), 15*time.Second, "not by the timeout")
				for rank, err := range errs {
					require.ErrorIs(t, err, dist.ErrMismatch, "rank %d", rank)
					require.NotErrorIs(t, err, dist.ErrTimeout)
					require.ErrorContains(t, err, c.want)
					require.ErrorContains(t, err, "#2 all-reduce")
					require.ErrorContains(t, err, "of 4 elements of float32 (sum)")
				}
			})
		}
	}
}

// A rank may run ahead: what differs is the first collective that does, whoever notices.
func TestWhatDiffersIsFoundAmongCollectivesInFlight(t *testing.T) {
	errs := ranks(t, 4, dist.GlooConfig{Timeout: 20 * time.Second}, func(ctx context.Context, g *dist.Gloo) error {
		var works []dist.Work
		for i := range 5 {
			n := int64(10 + i)
			if g.Rank() == 2 && i >= 2 {
				n++ // it leaves out one
			}
			x := torch.Ones(torch.Float32, n)
			defer x.Free()
			w, err := g.AllReduce(dist.WithLabel(ctx, fmt.Sprintf("layers.%d", n)), x, dist.Sum)
			if err != nil {
				return err
			}
			works = append(works, w)
		}
		var errs []error
		for _, w := range works {
			errs = append(errs, w.Wait(ctx))
		}
		return errors.Join(errs...)
	})
	for rank, err := range errs {
		var stall *dist.Stall
		require.ErrorAs(t, err, &stall, "rank %d", rank)
		require.True(t, stall.Mismatch)
		require.Equal(t, int64(3), stall.Seq)
		require.ErrorContains(t, err, `#3 all-reduce for "layers.12" of 12 elements of float32 (sum)`)
		require.ErrorContains(t, err, `#3 all-reduce for "layers.13" of 13 elements of float32 (sum)`)
	}
}

func TestCheckIsOnInDebugMode(t *testing.T) {
	t.Setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
	errs := ranks(t, 2, dist.GlooConfig{Timeout: 20 * time.Second}, func(ctx context.Context, g *dist.Gloo) error {
		return reduce(ctx, g, int64(4+g.Rank()))
	})
	for _, err := range errs {
		require.ErrorIs(t, err, dist.ErrMismatch)
	}
}

func TestAbortReachesTheOthersWithItsCause(t *testing.T) {
	mine := errors.New("out of coffee")
	errs := ranks(t, 3, dist.GlooConfig{Timeout: time.Minute}, func(ctx context.Context, g *dist.Gloo) error {
		switch g.Rank() {
		case 0: // in a collective
			return reduce(ctx, g, 4)
		case 1: // elsewhere
			for start := time.Now(); time.Since(start) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
				if _, err := g.Broadcast(ctx, torch.Ones(torch.Float32, 1), 7); err == nil {
					return errors.New("a broadcast from rank 7 was accepted")
				} else if errors.Is(err, dist.ErrAborted) {
					return err
				}
			}
			return reduce(ctx, g, 4)
		}
		time.Sleep(200 * time.Millisecond)
		g.Abort(mine)
		return reduce(ctx, g, 4)
	})
	for rank, err := range errs {
		require.ErrorContains(t, err, "out of coffee", "rank %d", rank)
	}
	require.ErrorIs(t, errs[2], mine)
}

// Work that nobody waits for does not keep a group from closing.
func TestCloseWithWorkInFlight(t *testing.T) {
	start := time.Now()
	errs := ranks(t, 2, dist.GlooConfig{Timeout: time.Minute}, func(ctx context.Context, g *dist.Gloo) error {
		if g.Rank() == 1 {
			time.Sleep(time.Second)
			return nil
		}
		_, err := g.AllReduce(ctx, torch.Ones(torch.Float32, 1000), dist.Sum)
		return err
	})
	require.NoError(t, errors.Join(errs...))
	require.Less(t, time.Since(start), 20*time.Second)
}

func TestConnectingNamesTheMissingRank(t *testing.T) {
	store, err := dist.NewHashStore()
	require.NoError(t, err)
	_, err = dist.NewGloo(t.Context(), store, 1, 3, dist.GlooConfig{Timeout: 500 * time.Millisecond})
	require.ErrorIs(t, err, dist.ErrTimeout)
	require.ErrorContains(t, err, "ranks that did not begin to connect: [0 2]")
}

// A peer that goes while a reduce-scatter runs is noticed at once, not when time is up.
func TestReduceScatterNoticesALostPeer(t *testing.T) {
	start := time.Now()
	errs := ranks(t, 2, dist.GlooConfig{Timeout: time.Minute}, func(ctx context.Context, g *dist.Gloo) error {
		if g.Rank() == 1 {
			time.Sleep(300 * time.Millisecond)
			return nil
		}
		in, out := torch.Ones(torch.Float32, 8), torch.Empty(torch.Float32, 4)
		defer in.Free()
		defer out.Free()
		return dist.Wait(ctx)(g.ReduceScatter(ctx, out, in, dist.Sum))
	})
	require.ErrorContains(t, errs[0], "rank 1 has left the group")
	require.Less(t, time.Since(start), 20*time.Second)
}

func TestReduceScatterOfEveryKind(t *testing.T) {
	for _, size := range []int{2, 3, 4} {
		errs := ranks(t, size, dist.GlooConfig{Timeout: time.Minute}, func(ctx context.Context, g *dist.Gloo) error {
			for _, dtype := range []torch.DType{torch.Float32, torch.Float64, torch.BFloat16, torch.Float16, torch.Int64, torch.Int32, torch.Uint8} {
				for _, n := range []int64{0, 1, 5, 4096} {
					for op, want := range []float64{float64(size*(size+1)) / 2, float64(size+1) / 2, 1, float64(size)} {
						if op := dist.ReduceOp(op); op == dist.Avg && !dtype.IsFloat() {
							continue
						}
						s := torch.NewScope(nil)
						in := s.Own(torch.Ones(dtype, n*int64(size))).MulScalar(float64(g.Rank() + 1)).To(dtype)
						out := s.Own(torch.Zeros(dtype, n))
						if err := dist.Wait(ctx)(g.ReduceScatter(ctx, out, in, dist.ReduceOp(op))); err != nil {
							return fmt.Errorf("%v: %w", dtype, err)
						}
						for _, v := range torch.Slice[float64](out.To(torch.Float64)) {
							if v != want {
								return fmt.Errorf("%v of %d %v: %v, want %v", dist.ReduceOp(op), n, dtype, v, want)
							}
						}
						s.Close()
					}
				}
			}
			return nil
		})
		require.NoError(t, errors.Join(errs...))
	}
}

// Whatever a collective cannot do is an error of this rank, and no crash.
func TestCollectivesOnTensorsThatCannotTravel(t *testing.T) {
	errs := ranks(t, 2, dist.GlooConfig{Timeout: 20 * time.Second}, func(ctx context.Context, g *dist.Gloo) error {
		s := torch.NewScope(nil)
		defer s.Close()
		meta := s.Own(torch.EmptyOn(torch.Meta, torch.Float32, 4))
		half := s.Own(torch.EmptyOn(torch.Meta, torch.Float32, 2))
		freed := torch.Ones(torch.Float32, 4)
		freed.Free()
		for name, run := range map[string]func() (dist.Work, error){
			"all-gather of meta":     func() (dist.Work, error) { return g.AllGather(ctx, meta, half) },
			"reduce-scatter of meta": func() (dist.Work, error) { return g.ReduceScatter(ctx, half, meta, dist.Sum) },
			"all-reduce of meta":     func() (dist.Work, error) { return g.AllReduce(ctx, meta, dist.Sum) },
			"broadcast of meta":      func() (dist.Work, error) { return g.Broadcast(ctx, meta, 0) },
			"all-reduce of freed":    func() (dist.Work, error) { return g.AllReduce(ctx, freed, dist.Sum) },
			"broadcast of freed":     func() (dist.Work, error) { return g.Broadcast(ctx, freed, 0) },
			"all-gather of freed":    func() (dist.Work, error) { return g.AllGather(ctx, freed, half) },
			"root":                   func() (dist.Work, error) { return g.Broadcast(ctx, meta, 2) },
		} {
			_, err := run()
			var failed *dist.Error
			if !errors.As(err, &failed) || !strings.Contains(err.Error(), "rank ") {
				return fmt.Errorf("%s: %v", name, err)
			}
		}
		return nil
	})
	require.NoError(t, errors.Join(errs...))
}
