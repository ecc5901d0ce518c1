package fsdp_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// Units inside units, and inside checkpointed layers of both kinds, where the inner ones run again in backward.
func TestNestedUnits(t *testing.T) {
	inner := func(c fsdp.Candidate) bool {
		return strings.HasSuffix(c.Name, ".big") || strings.HasSuffix(c.Name, ".small")
	}
	step := func(ctx context.Context, m *lm, rank int) error {
		return torch.Try(func() {
			s := torch.NewScope(nil)
			defer s.Close()
			c := &nn.Call{Context: ctx, Scope: s, Training: true}
			nn.Run(m, c, s.Own(torch.FromSlice([]int64{1, 2, 3, int64(4 + rank)}, 4))).Backward()
		})
	}
	for name, units := range map[string]fsdp.Policy{
		"inner": inner, "both": fsdp.Any(fsdp.ByKind("Layer"), inner), "outer": fsdp.ByKind("Layer"),
		"all": fsdp.BySize(1),
	} {
		for _, kind := range []string{"", "kept", "re-entrant"} {
			for _, frozenEmbedding := range []bool{false, true} {
				for _, config := range []fsdp.Config{{}, {ReshardSize: 2}, {Reshard: fsdp.ReshardAfterBackward, Branches: true}} {
					if kind == "re-entrant" && frozenEmbedding {
						continue // its inputs must require grad
					}
					t.Run(fmt.Sprint(name, kind, frozenEmbedding, config.ReshardSize, config.Branches), func(t *testing.T) {
						build := func() *lm {
							m := initLM(false)
							m.Embed.Weight.SetTrainable(!frozenEmbedding)
							for _, l := range m.Layers {
								l.SetCheckpoint(kind != "")
								l.SetCheckpointReentrant(kind == "re-entrant")
							}
							return m
						}
						ref := build()
						for rank := range 4 {
							require.NoError(t, step(t.Context(), ref, rank))
						}
						ranktest.Run(t, 4, func(ctx context.Context, g dist.Group) error {
							m := build()
							config := config
							config.Units, config.DivideFactor = units, 1
							f, err := fsdp.Wrap(m, g, config)
							if err != nil {
								return err
							}
							for range 2 {
								f.ZeroGrad()
								if err := step(ctx, m, g.Rank()); err != nil {
									return err
								}
								for i, p := range nn.NamedParams(m) {
									if err := compare(p.Name, p.Param.Tensor().Grad(), nn.Params(ref)[i].Tensor().Grad(), g); err != nil {
										return err
									}
								}
							}
							return nil
						})
					})
				}
			}
		}
	}
}

// Slow collectives and slow layers change the time at which things happen, not what happens.
func TestDelaysChangeNothing(t *testing.T) {
	const delay = 3 * time.Millisecond
	slow := func(rank, at int) {
		if rank%2 == at {
			time.Sleep(delay)
		}
	}
	ref := newChain(4)
	for rank := range 4 {
		require.NoError(t, ref.step(t.Context(), rank, 0))
	}
	ranktest.Run(t, 4, func(ctx context.Context, g dist.Group) error {
		mesh, err := dist.NewMesh(ctx, g, []int{2, 2}, []string{"replicate", "shard"})
		if err != nil {
			return err
		}
		defer mesh.Close(ctx)
		calls := 0
		n := newChain(4)
		for _, l := range n.Layers {
			l.look = func(*lookLayer, *nn.Call, *torch.Tensor) { slow(g.Rank(), 0) }
		}
		m, err := fsdp.WrapMesh(ctx, n, mesh, fsdp.Config{
			Units: fsdp.ByType[*lookLayer](), DivideFactor: 1,
			Comm: fsdp.Communication{
				AllGather: func(ctx context.Context, c fsdp.Collective, out, in *torch.Tensor) (dist.Work, error) {
					slow(g.Rank(), 1)
					return c.Group.AllGather(ctx, out, in)
				},
				ReduceScatter: func(ctx context.Context, c fsdp.Collective, out, in *torch.Tensor, op dist.ReduceOp) (dist.Work, error) {
					slow(g.Rank(), 0)
					return c.Group.ReduceScatter(ctx, out, in, op)
				},
				AllReduce: func(ctx context.Context, c fsdp.Collective, t *torch.Tensor, op dist.ReduceOp) (dist.Work, error) {
					calls++
					slow(g.Rank(), 1)
					return c.Group.AllReduce(ctx, t, op)
				},
			},
		})
		if err != nil {
			return err
		}
		for range 3 {
			m.ZeroGrad()
			if err := n.step(ctx, g.Rank(), 0); err != nil {
				return err
			}
			for i, p := range nn.NamedParams(n) {
				if err := compare(p.Name, p.Param.Tensor().Grad(), nn.Params(ref)[i].Tensor().Grad(), m.ShardGroup()); err != nil {
					return err
				}
			}
		}
		if calls != 3*5 {
			return fmt.Errorf("%d all-reduces", calls)
		}
		return nil
	})
}
