package fsdp_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// buffered is an mlp with a buffer, such as the frequencies of a rotary embedding, that no file holds.
type buffered struct {
	nn.Hooks
	MLP  *mlp      `torch:"mlp"`
	Freq *nn.Param `torch:"inv_freq"`
}

func (b *buffered) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	return nn.Run(b.MLP, c, x.Mul(b.Freq.In(c.Scope)))
}

func newBuffered(s [3]int64, device torch.Device) *buffered {
	m := &mlp{
		First:  nn.NewLinear(s[0], s[1], true, torch.Float64, device),
		Second: nn.NewLinear(s[1], s[2], true, torch.Float64, device),
		Scale:  nn.NewParam(torch.EmptyOn(device, torch.Float64, s[2]), true),
	}
	return &buffered{MLP: m, Freq: nn.NewBuffer(torch.EmptyOn(device, torch.Float32, s[0]))}
}

// FC-58: rank 0 has the values, the others nothing: parameters, and buffers in their own type, are the same everywhere, and
// so is the training that follows.
func TestSyncModuleStates(t *testing.T) {
	for _, s := range sizes {
		ranktest.Run(t, 3, func(ctx context.Context, g dist.Group) error {
			ref := newBuffered(s, torch.CPU)
			ref.MLP = newMLP(s)
			for i := range s[0] {
				torch.NoGrad(func() { ref.Freq.Tensor().Narrow(0, i, 1).Fill(1 / float64(i+1)) })
			}
			m := newBuffered(s, torch.Meta)
			if g.Rank() == 0 {
				m = newBuffered(s, torch.CPU)
				for i, p := range nn.Params(m) {
					torch.NoGrad(func() { p.Tensor().Copy(nn.Params(ref)[i].Tensor()) })
				}
			}
			if _, err := fsdp.Wrap(m, g, fsdp.Config{Units: fsdp.ByType[*nn.Linear](), SyncModuleStates: true}); err != nil {
				return err
			}
			if got := m.Freq.Tensor(); got.DType() != torch.Float32 || !got.Equal(ref.Freq.Tensor()) || got.Narrow(0, 0, 1).Item() != 1 {
				return fmt.Errorf("the buffer is %v", torch.Slice[float32](got))
			}
			for i, p := range nn.NamedParams(m) {
				if !p.Param.Buffer() {
					if err := compare(p.Name, p.Param.Tensor(), nn.Params(ref)[i].Tensor(), g); err != nil {
						return err
					}
				}
			}
			scope := torch.NewScope(nil)
			defer scope.Close()
			x := scope.Own(batch(s, 0, 0, 0))
			nn.Run(ref, &nn.Call{Scope: scope, Training: true}, x).Backward()
			nn.Run(m, &nn.Call{Context: ctx, Scope: scope, Training: true}, x).Backward()
			for i, p := range nn.NamedParams(m) {
				if !p.Param.Buffer() {
					if err := compare(p.Name, p.Param.Tensor().Grad(), nn.Params(ref)[i].Tensor().Grad(), g); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	var errs [2]error
	ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
		_, errs[g.Rank()] = fsdp.Wrap(newBuffered(sizes[0], torch.Meta), g, fsdp.Config{SyncModuleStates: true})
		return nil
	})
	require.ErrorContains(t, errs[0], "rank 0 has no values: mlp.first.weight is on the meta device")
	require.ErrorContains(t, errs[1], "rank 0 has no values")
	ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
		_, errs[g.Rank()] = fsdp.Wrap(newMLP(sizes[g.Rank()]), g, fsdp.Config{SyncModuleStates: true})
		return nil
	})
	for _, err := range errs {
		require.ErrorContains(t, err, "ranks have different models")
	}
}

// Values drawn after Wrap are those of the whole model for the same seed, for even, uneven and empty shards.
func TestMaterialize(t *testing.T) {
	for _, dims := range [][3]int64{{8, 8, 8}, {3, 3, 3}, {4, 1, 1}} {
		ranktest.Run(t, 3, func(ctx context.Context, g dist.Group) error {
			m := newBuffered(dims, torch.Meta).MLP
			f, err := fsdp.Wrap(m, g, fsdp.Config{Units: fsdp.ByType[*nn.Linear](), Precision: fsdp.MixedPrecision{ReduceDType: torch.Float64}})
			if err != nil {
				return err
			}
			if err := f.Load(); err == nil || !strings.Contains(err.Error(), "first.weight, first.bias") {
				return fmt.Errorf("got %v", err)
			}
			err = f.Materialize(m, torch.NewGenerator(3))
			if err == nil || !strings.Contains(err.Error(), "no module draws the values of scale") {
				return fmt.Errorf("got %v", err)
			}
			lo, hi := m.Scale.Rows()
			m.Scale.SetTensor(torch.Ones(torch.Float64, hi-lo))
			if err := f.Materialize(m, torch.NewGenerator(4)); err != nil { // everything has a value by now
				return err
			}
			return trainSharded(ctx, f, m, dims, modes[0], trainWhole(dims, 3, 1))
		})
	}
}
