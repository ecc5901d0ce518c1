package fsdp_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// FC-44: norms of several kinds over all parameters, and over some in any order, equal the unsharded ones on ranks with
// empty shards and in replicas; after clipping the norm is the maximum.
func TestClipNorms(t *testing.T) {
	s := [3]int64{7, 3, 1} // 3 rows and 1 row on 4 ranks: empty shards
	unsharded := trainWhole(s, 4, 1)[0].grads
	ranktest.Run(t, 4, func(ctx context.Context, g dist.Group) error {
		mesh, err := dist.NewMesh(ctx, g, []int{2, 2}, []string{"replicate", "shard"})
		if err != nil {
			return err
		}
		defer mesh.Close(ctx)
		for _, strategy := range []fsdp.Strategy{fsdp.FullShard, fsdp.NoShard, fsdp.HybridShard} {
			for _, p := range []float64{1, 2, 3, math.Inf(1)} {
				m := newMLP(s)
				c := fsdp.Config{Strategy: strategy, Units: fsdp.ByType[*nn.Linear]()}
				var f *fsdp.Model
				if strategy == fsdp.HybridShard {
					f, err = fsdp.WrapMesh(ctx, m, mesh, c)
				} else {
					f, err = fsdp.Wrap(m, g, c)
				}
				if err != nil {
					return err
				}
				some := nn.Params(m)[1:3]
				slices.Reverse(some)
				for _, params := range [][]*nn.Param{nil, some} {
					f.ZeroGrad()
					step := func() error {
						scope := torch.NewScope(nil)
						defer scope.Close()
						return torch.Try(func() { lossOf(ctx, m, scope.Own(batch(s, g.Rank(), 0, 0))).Backward() })
					}
					if err := step(); err != nil {
						return err
					}
					want := wholeNorm(unsharded, params != nil, p)
					got, err := f.Clip(ctx, fsdp.Clip{Max: want / 3, NormType: p, Params: params})
					if err != nil {
						return err
					}
					if math.Abs(got-want) > 1e-9*want {
						return fmt.Errorf("%v, norm %v: %v, want %v", strategy, p, got, want)
					}
					after, err := f.Clip(ctx, fsdp.Clip{NormType: p, Params: params})
					if err != nil {
						return err
					}
					if math.Abs(after-want/3) > 1e-4*want {
						return fmt.Errorf("%v, norm %v: %v after clipping, want %v", strategy, p, after, want/3)
					}
				}
			}
		}
		return nil
	})
}

func wholeNorm(grads []*torch.Tensor, some bool, p float64) float64 {
	if some {
		grads = grads[1:3]
	}
	var flat []*torch.Tensor
	for _, g := range grads {
		flat = append(flat, g.View(-1))
	}
	return torch.Cat(0, flat...).Norm(p).Item()
}

// A NaN or an infinity on one rank is seen by all of them, in every norm.
func TestClipNonfinite(t *testing.T) {
	ranktest.Run(t, 3, func(ctx context.Context, g dist.Group) error {
		for _, p := range []float64{2, math.Inf(1)} {
			for _, bad := range []float64{math.NaN(), math.Inf(1)} {
				m := newMLP([3]int64{7, 3, 3})
				f, err := fsdp.Wrap(m, g, fsdp.Config{})
				if err != nil {
					return err
				}
				if err := f.Load(); err != nil {
					return err
				}
				for _, q := range nn.Params(m) {
					q.Tensor().SetGrad(torch.Ones(torch.Float64, q.Tensor().Shape()...))
				}
				if g.Rank() == 1 {
					m.Scale.Tensor().Grad().Fill(bad)
				}
				carry := 1.0
				norm, err := f.Clip(ctx, fsdp.Clip{NormType: p}, &carry)
				if err != nil {
					return err
				}
				if fmt.Sprint(norm) != fmt.Sprint(bad) || carry != 3 {
					return fmt.Errorf("norm %v of %v is %v, carried %v", p, bad, norm, carry)
				}
				if _, err := f.Clip(ctx, fsdp.Clip{Max: 1, NormType: p, ErrorIfNonfinite: true}); !errors.Is(err, fsdp.ErrNonfinite) {
					return fmt.Errorf("got %v", err)
				}
				if got := m.First.Weight.Tensor().Grad(); got.Numel() > 0 && got.Max().Item() != 1 {
					return errors.New("gradients were changed")
				}
			}
		}
		f, err := fsdp.Wrap(newMLP(sizes[0]), g, fsdp.Config{})
		if err != nil {
			return err
		}
		for _, c := range []fsdp.Clip{{NormType: -1}, {Max: -1}, {Max: math.NaN()}, {NormType: math.NaN()}} {
			if _, err := f.Clip(ctx, c); err == nil {
				return fmt.Errorf("%+v was accepted", c)
			}
		}
		norm, err := f.ClipGradNorm(ctx, 1) // no gradients at all
		if err != nil || norm != 0 {
			return fmt.Errorf("norm %v: %w", norm, err)
		}
		return nil
	})
}
