package fsdp_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
)

// BenchmarkStep is a forward and a backward of layers that compute next to nothing: the cost of sharding itself. It grows
// linearly with the number of layers.
func BenchmarkStep(b *testing.B) {
	for _, layers := range []int{2, 32, 128} {
		b.Run(fmt.Sprintf("plain/%d layers", layers), func(b *testing.B) {
			n := newChain(layers)
			for range b.N {
				if err := n.step(b.Context(), 0, 0); err != nil {
					b.Fatal(err)
				}
				for _, l := range n.Layers {
					l.W.Tensor().SetGrad(nil)
				}
			}
		})
		for _, ranks := range []int{1, 2} {
			b.Run(fmt.Sprintf("%d ranks/%d layers", ranks, layers), func(b *testing.B) {
				run := func(ctx context.Context, g dist.Group) error {
					n := newChain(layers)
					m, err := fsdp.Wrap(n, g, fsdp.Config{Units: fsdp.ByType[*lookLayer]()})
					if err != nil {
						return err
					}
					for range b.N {
						if err := n.step(ctx, g.Rank(), 0); err != nil {
							return err
						}
						m.ZeroGrad()
					}
					return nil
				}
				if ranks == 1 {
					if err := torch.Try(func() { torch.Throw(run(b.Context(), dist.NewSingle())) }); err != nil {
						b.Fatal(err)
					}
					return
				}
				ranktest.Run(b, ranks, run)
			})
		}
	}
}
