package dist_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
)

// BenchmarkReduceScatter compares it with the all-reduce that it would be otherwise, per rank and 16 MiB.
func BenchmarkReduceScatter(b *testing.B) {
	const n = 4 << 20
	for _, size := range []int{2, 4} {
		for _, op := range []dist.Op{dist.OpReduceScatter, dist.OpAllReduce} {
			b.Run(fmt.Sprintf("%s over %d", op, size), func(b *testing.B) {
				ranktest.Run(b, size, func(ctx context.Context, g dist.Group) error {
					s := torch.NewScope(nil)
					defer s.Close()
					in, out := s.Own(torch.Ones(torch.Float32, n)), s.Own(torch.Empty(torch.Float32, n/int64(size)))
					for range b.N {
						var err error
						if op == dist.OpAllReduce {
							err = dist.Wait(ctx)(g.AllReduce(ctx, in, dist.Max))
						} else {
							err = dist.Wait(ctx)(g.ReduceScatter(ctx, out, in, dist.Sum))
						}
						if err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}

// BenchmarkAllGather is of 1 MiB, which goes through a buffer of Gloo's, and of 16, which does not, per rank.
func BenchmarkAllGather(b *testing.B) {
	for _, size := range []int{2, 4} {
		for _, n := range []int64{256<<10 - 4, 4 << 20} {
			b.Run(fmt.Sprintf("%d KiB over %d", n*4>>10, size), func(b *testing.B) {
				ranktest.Run(b, size, func(ctx context.Context, g dist.Group) error {
					s := torch.NewScope(nil)
					defer s.Close()
					in, out := s.Own(torch.Ones(torch.Float32, n/int64(size))), s.Own(torch.Empty(torch.Float32, n))
					for range b.N {
						if err := dist.Wait(ctx)(g.AllGather(ctx, out, in)); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}

// BenchmarkSmallAllReduce is the latency of a collective, plain and with the check of all ranks before it.
func BenchmarkSmallAllReduce(b *testing.B) {
	for _, check := range []string{"", "DETAIL"} {
		b.Run("debug="+check, func(b *testing.B) {
			b.Setenv("TORCH_DISTRIBUTED_DEBUG", check)
			ranktest.Run(b, 2, func(ctx context.Context, g dist.Group) error {
				x := torch.Ones(torch.Float32, 16)
				defer x.Free()
				for range b.N {
					if err := dist.Wait(ctx)(g.AllReduce(ctx, x, dist.Max)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}
