package dist_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
)

func TestCollectives(t *testing.T) {
	for _, size := range []int{1, 2, 3, 4} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			ranktest.Run(t, size, func(ctx context.Context, g dist.Group) error {
				s := torch.NewScope(nil)
				defer s.Close()
				r := float32(g.Rank())
				in := s.Own(torch.FromSlice([]float32{r, r + 0.5}))
				out := s.Own(torch.Empty(torch.Float32, int64(2*size)))
				if err := dist.Wait(ctx)(g.AllGather(ctx, out, in)); err != nil {
					return err
				}
				for i, v := range torch.Slice[float32](out) {
					if v != float32(i/2)+float32(i%2)/2 {
						return fmt.Errorf("all-gather: element %d is %v", i, v)
					}
				}
				part := s.Own(torch.Empty(torch.Float32, 2))
				if err := dist.Wait(ctx)(g.ReduceScatter(ctx, part, out, dist.Avg)); err != nil {
					return err
				}
				if got := torch.Slice[float32](part); got[0] != r || got[1] != r+0.5 {
					return fmt.Errorf("reduce-scatter: %v", got)
				}
				sum := s.Own(torch.FromSlice([]float64{float64(r), 1}))
				if err := dist.Wait(ctx)(g.AllReduce(ctx, sum, dist.Sum)); err != nil {
					return err
				}
				if got := torch.Slice[float64](sum); got[0] != float64(size*(size-1)/2) || got[1] != float64(size) {
					return fmt.Errorf("all-reduce: %v", got)
				}
				b := s.Own(torch.FromSlice([]uint8{uint8(g.Rank()), 7}))
				if err := dist.Wait(ctx)(g.Broadcast(ctx, b, size-1)); err != nil {
					return err
				}
				if got := torch.Slice[uint8](b); got[0] != uint8(size-1) || got[1] != 7 {
					return fmt.Errorf("broadcast: %v", got)
				}
				return nil
			})
		})
	}
}

func TestCollectiveRefusesWrongSizes(t *testing.T) {
	ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
		s := torch.NewScope(nil)
		defer s.Close()
		_, err := g.AllGather(ctx, s.Own(torch.Ones(torch.Float32, 3)), s.Own(torch.Ones(torch.Float32, 2)))
		var de *dist.Error
		if !errors.As(err, &de) || de.Rank != g.Rank() {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

func TestMissingRankTimesOut(t *testing.T) {
	store, err := dist.NewHashStore()
	require.NoError(t, err)
	var group errgroup.Group
	errs := make([]error, 2)
	for rank := range 2 {
		group.Go(func() error {
			g, err := dist.NewGloo(t.Context(), store, rank, 2, dist.GlooConfig{Timeout: time.Second})
			if err != nil {
				return err
			}
			if rank == 1 {
				time.Sleep(3 * time.Second) // this rank never joins
				return g.Close(t.Context())
			}
			errs[rank] = g.Barrier(t.Context())
			return nil
		})
	}
	require.NoError(t, group.Wait())
	require.ErrorIs(t, errs[0], dist.ErrTimeout)
	require.ErrorContains(t, errs[0], "rank 0 of 2")
}

func TestCancelEndsACollective(t *testing.T) {
	store, err := dist.NewHashStore()
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	mine := errors.New("mine")
	var group errgroup.Group
	for rank := range 2 {
		group.Go(func() error {
			g, err := dist.NewGloo(t.Context(), store, rank, 2, dist.GlooConfig{Timeout: time.Minute})
			if err != nil {
				return err
			}
			if rank == 1 {
				time.Sleep(300 * time.Millisecond)
				cancel(mine)
				time.Sleep(time.Second)
				return nil
			}
			start := time.Now()
			if err := g.Barrier(ctx); !errors.Is(err, mine) {
				return fmt.Errorf("barrier ended with %v", err)
			}
			if time.Since(start) > 5*time.Second {
				return errors.New("barrier took long to end")
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
}

func freePort(t testing.TB) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func TestInitOverTCP(t *testing.T) {
	port := freePort(t)
	var group errgroup.Group
	for rank := range 3 {
		group.Go(func() error {
			env := dist.Env{Rank: rank, WorldSize: 3, MasterAddr: "127.0.0.1", MasterPort: port}
			g, leave, err := dist.Init(t.Context(), env, 20*time.Second)
			if err != nil {
				return err
			}
			if err := g.Barrier(t.Context()); err != nil {
				return err
			}
			return leave(t.Context())
		})
	}
	require.NoError(t, group.Wait())
}

func TestConnectNamesTheMissingRank(t *testing.T) {
	env := dist.Env{Rank: 0, WorldSize: 2, MasterAddr: "127.0.0.1", MasterPort: freePort(t)}
	_, err := dist.Connect(t.Context(), env, time.Second)
	require.ErrorContains(t, err, "rank 1 of 2 did not arrive")
}

func TestConnectReportsATakenPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	env := dist.Env{Rank: 0, WorldSize: 2, MasterAddr: "127.0.0.1", MasterPort: port}
	_, err = dist.Connect(t.Context(), env, 3*time.Second)
	require.ErrorContains(t, err, fmt.Sprint(port))
}

func TestWaitAgainReturnsTheSame(t *testing.T) {
	ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
		s := torch.NewScope(nil)
		defer s.Close()
		mean := s.Own(torch.FromSlice([]float32{float32(4 * g.Rank())}))
		work, err := g.AllReduce(ctx, mean, dist.Avg)
		if err != nil {
			return err
		}
		for range 3 {
			if err := work.Wait(ctx); err != nil {
				return err
			}
			if got := mean.Item(); got != 2 {
				return fmt.Errorf("the mean is %v", got)
			}
		}
		return nil
	})
}

func TestWaitAgainAfterAFailure(t *testing.T) {
	store, err := dist.NewHashStore()
	require.NoError(t, err)
	var group errgroup.Group
	for rank := range 2 {
		group.Go(func() error {
			g, err := dist.NewGloo(t.Context(), store, rank, 2, dist.GlooConfig{Timeout: time.Second})
			if err != nil {
				return err
			}
			if rank == 1 {
				time.Sleep(3 * time.Second) // this rank never joins
				return g.Close(t.Context())
			}
			sum := torch.FromSlice([]float32{1})
			defer sum.Free()
			work, err := g.AllReduce(t.Context(), sum, dist.Sum)
			if err != nil {
				return err
			}
			first := work.Wait(t.Context())
			if again := work.Wait(t.Context()); !errors.Is(first, dist.ErrTimeout) || again != first {
				return fmt.Errorf("waiting gave %v, and then %v", first, again)
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
}

// A signal on a thread that Go did not start ends the process: see Note [Broken pipes] in csrc/dist.cc.
func TestThreadsOfGlooBlockSigpipe(t *testing.T) {
	ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		defer func() { _ = g.Barrier(ctx) }() // no rank leaves before the other has looked
		tasks, err := filepath.Glob("/proc/self/task/*/status")
		if err != nil {
			return err
		}
		checked := 0
		for _, path := range tasks {
			text, err := os.ReadFile(path)
			if err != nil || !bytes.Contains(text, []byte("Name:\tpt_gloo")) {
				continue // of another library, or ended
			}
			_, mask, _ := strings.Cut(string(text), "SigBlk:\t")
			blocked, err := strconv.ParseUint(mask[:16], 16, 64)
			if err != nil || blocked>>(syscall.SIGPIPE-1)&1 == 0 {
				return fmt.Errorf("SIGPIPE is not blocked:\n%s", text)
			}
			checked++
		}
		if checked < 2 {
			return fmt.Errorf("%d of %d threads are Gloo's", checked, len(tasks))
		}
		return nil
	})
}
