package fsdp_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/dist"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/ranktest"
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/gofsdp/gofsdp/torch/optim"
)

// lookLayer lets a test see what its forward sees.
type lookLayer struct {
	nn.Hooks
	W      *nn.Param `torch:"w"`
	Packed *nn.Param `torch:"packed"`
	Table  *nn.Param `torch:"table"`
	look   func(l *lookLayer, c *nn.Call, x *torch.Tensor)
}

func (l *lookLayer) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	if l.look != nil {
		l.look(l, c, x)
	}
	w := l.W.In(c.Scope)
	return x.To(w.DType()).Linear(w, nil)
}

type lookNet struct {
	nn.Hooks
	Layers []*lookLayer `torch:"layers"`
}

func (n *lookNet) Forward(c *nn.Call, x *torch.Tensor) *torch.Tensor {
	for _, l := range n.Layers {
		x = nn.Run(l, c, x)
	}
	return x.Sum()
}

// everyPattern is all 16-bit patterns, as a bfloat16 tensor of 256 rows.
func everyPattern() (*torch.Tensor, []byte) {
	b := make([]byte, 2*65536)
	for i := range 65536 {
		b[2*i], b[2*i+1] = byte(i), byte(i>>8)
	}
	return torch.FromBytes(torch.BFloat16, b, 256, 256), b
}

func newLookNet(layers int) *lookNet {
	n := &lookNet{}
	g := torch.NewGenerator(1)
	for range layers {
		packed, _ := everyPattern()
		n.Layers = append(n.Layers, &lookLayer{
			W:      nn.NewParam(torch.Randn(g, torch.Float32, 5, 5), true),
			Packed: nn.NewParam(packed, false).SetVerbatim(),
			Table:  nn.NewParam(torch.Ones(torch.Float32, 3), false),
		})
	}
	return n
}

// FC-71: packed bytes in a floating-point type stay bit for bit what they are, beside parameters that are converted; also
// in and out of FullTensor.
func TestMixedPrecisionTypes(t *testing.T) {
	var reduced, gathered sync.Map
	comm := fsdp.Communication{
		ReduceScatter: func(ctx context.Context, c fsdp.Collective, out, in *torch.Tensor, op dist.ReduceOp) (dist.Work, error) {
			reduced.Store(c.Unit, in.DType())
			return c.Group.ReduceScatter(ctx, out, in, op)
		},
		AllGather: func(ctx context.Context, c fsdp.Collective, out, in *torch.Tensor) (dist.Work, error) {
			gathered.Store(c.Unit, in.Numel())
			return c.Group.AllGather(ctx, out, in)
		},
	}
	for _, direct := range []int64{-1, 1} {
		ranktest.Run(t, 3, func(ctx context.Context, g dist.Group) error {
			n := newLookNet(2)
			_, want := everyPattern()
			var faults []error
			expect := func(what string, got, want torch.DType) {
				if got != want {
					faults = append(faults, fmt.Errorf("%s is %v, want %v", what, got, want))
				}
			}
			for i, l := range n.Layers {
				l.look = func(l *lookLayer, c *nn.Call, x *torch.Tensor) {
					compute := []torch.DType{torch.BFloat16, torch.Float64}[i]
					expect("input", x.DType(), compute)
					expect("weight", l.W.Tensor().DType(), compute)
					expect("table", l.Table.Tensor().DType(), compute)
					expect("packed", l.Packed.Tensor().DType(), torch.BFloat16)
					if string(l.Packed.Tensor().Bytes()) != string(want) {
						faults = append(faults, errors.New("packed bytes were changed"))
					}
				}
			}
			m, err := fsdp.Wrap(n, g, fsdp.Config{
				Units: fsdp.ByType[*lookLayer](), DirectBytes: direct, Comm: comm,
				Precision: fsdp.MixedPrecision{ParamDType: torch.BFloat16, ReduceDType: torch.Float32, OutputDType: torch.Float32},
				PerUnit: func(name string, _ any) fsdp.UnitOptions {
					if name != "layers.1" {
						return fsdp.UnitOptions{}
					}
					return fsdp.UnitOptions{Precision: &fsdp.MixedPrecision{ParamDType: torch.Float64}}
				},
			})
			if err != nil {
				return err
			}
			s := torch.NewScope(nil)
			defer s.Close()
			out := nn.Run(n, &nn.Call{Context: ctx, Scope: s, Training: true}, s.Own(torch.Ones(torch.Float32, 2, 5)))
			expect("output", out.DType(), torch.Float32)
			out.Backward()
			for _, l := range n.Layers {
				expect("master", l.W.Tensor().DType(), torch.Float32)
				expect("gradient", l.W.In(s).Grad().DType(), torch.Float32)
			}
			full, err := m.FullTensor(ctx, "layers.1.packed")
			if err != nil {
				return err
			}
			if string(s.Own(full).Bytes()) != string(want) {
				faults = append(faults, errors.New("FullTensor changed packed bytes"))
			}
			return errors.Join(faults...)
		})
		first, _ := reduced.Load("layers.0")
		second, _ := reduced.Load("layers.1")
		require.Equal(t, []any{torch.Float32, torch.Float64}, []any{first, second}, "types of the reductions")
	}
}

// FC-49: an update that is less than half a step of bfloat16 is not lost: the shards keep float32 while layers compute in
// bfloat16. Parameters that are themselves bfloat16 do not move.
func TestSmallUpdatesNeedWideShards(t *testing.T) {
	for stored, want := range map[torch.DType]float32{torch.Float32: 0.999, torch.BFloat16: 1} {
		ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
			n := &lookNet{Layers: []*lookLayer{{W: nn.NewParam(torch.Ones(stored, 4, 1), true)}}}
			m, err := fsdp.Wrap(n, g, fsdp.Config{Precision: fsdp.MixedPrecision{ParamDType: torch.BFloat16}})
			if err != nil {
				return err
			}
			opt, err := optim.NewSGD(nn.Params(n), optim.SGDConfig{LR: 1e-3})
			if err != nil {
				return err
			}
			defer opt.Close()
			return torch.Try(func() {
				s := torch.NewScope(nil)
				defer s.Close()
				nn.Run(n, &nn.Call{Context: ctx, Scope: s, Training: true}, s.Own(torch.Ones(torch.Float32, 1, 1))).Backward()
				opt.Step()
				full, err := m.FullTensor(ctx, "layers.0.w")
				torch.Throw(err)
				for _, got := range torch.Slice[float32](s.Own(full).To(torch.Float32)) {
					if got != want {
						torch.Throw(fmt.Errorf("%v: %v after the step, want %v", stored, got, want))
					}
				}
			})
		})
	}
}

// FC-47: where gradients are reduced in float32 they are accumulated in it too.
func TestAccumulationInTheTypeOfTheReduction(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		for reduce, want := range map[torch.DType]float64{torch.Float32: 1.5, torch.BFloat16: 1} {
			ranktest.Run(t, ranks, func(ctx context.Context, g dist.Group) error {
				n := &lookNet{Layers: []*lookLayer{{W: nn.NewParam(torch.Ones(torch.Float32, 2, 1), true)}}}
				m, err := fsdp.Wrap(n, g, fsdp.Config{Precision: fsdp.MixedPrecision{ParamDType: torch.BFloat16, ReduceDType: reduce}})
				if err != nil {
					return err
				}
				micro := func(value float64) {
					s := torch.NewScope(nil)
					defer s.Close()
					x := s.Own(torch.Full(torch.Float32, value, 1, 1))
					nn.Run(n, &nn.Call{Context: ctx, Scope: s, Training: true}, x).Backward()
				}
				err = m.Accumulate(func() error {
					return torch.Try(func() {
						micro(1)
						for range 255 {
							micro(math.Pow(2, -9))
						}
					})
				})
				if err != nil {
					return err
				}
				micro(math.Pow(2, -9))
				s := torch.NewScope(nil)
				defer s.Close()
				for _, got := range torch.Slice[float32](n.Layers[0].W.In(s).Grad()) {
					if float64(got) != want {
						return fmt.Errorf("gradient %v, want %v", got, want)
					}
				}
				return nil
			})
		}
	}
}

// FC-37, FC-43: a unit trains parameters of several types beside frozen ones of any, and one that is not sharded at all.
// The norm is that of all of them, and counts the last one once.
func TestTrainableParametersOfSeveralTypes(t *testing.T) {
	build := func() *lookNet {
		n := newLookNet(4)
		n.Layers[1].W = nn.NewParam(n.Layers[1].W.Tensor().Detach().To(torch.BFloat16), true)
		n.Layers[2].W = nn.NewParam(n.Layers[2].W.Tensor().Detach().To(torch.Float64), true)
		return n
	}
	run := func(ctx context.Context, n *lookNet, rank int) {
		s := torch.NewScope(nil)
		defer s.Close()
		x := s.Own(torch.Randn(torch.NewGenerator(int64(rank)), torch.Float32, 2, 5))
		nn.Run(n, &nn.Call{Context: ctx, Scope: s, Training: true}, x).DivScalar(2).Backward()
	}
	for name, c := range map[string]struct {
		normType, tolerance float64
	}{"1": {1, 1e-2}, "2": {2, 1e-2}, "3": {3, 1e-2}, "inf": {math.Inf(1), 1e-2}} {
		t.Run(name, func(t *testing.T) {
			ref := build()
			run(t.Context(), ref, 0)
			run(t.Context(), ref, 1)
			want := 0.0
			var grads []*torch.Tensor
			for _, l := range ref.Layers {
				g := l.W.Tensor().Grad().To(torch.Float64)
				grads = append(grads, g)
				if norm := g.Norm(c.normType).Item(); math.IsInf(c.normType, 1) {
					want = max(want, norm)
				} else {
					want += math.Pow(norm, c.normType)
				}
			}
			if !math.IsInf(c.normType, 1) {
				want = math.Pow(want, 1/c.normType)
			}
			var norms sync.Map
			ranktest.Run(t, 2, func(ctx context.Context, g dist.Group) error {
				n := build()
				m, err := fsdp.Wrap(n, g, fsdp.Config{
					DivideFactor: 1, Ignore: func(p nn.Named) bool { return p.Name == "layers.3.w" },
				})
				if err != nil {
					return err
				}
				run(ctx, n, g.Rank())
				s := torch.NewScope(nil)
				defer s.Close()
				plain := n.Layers[3].W
				if err := dist.Wait(ctx)(g.AllReduce(ctx, plain.In(s).Grad(), dist.Sum)); err != nil {
					return err
				}
				norm, err := m.Clip(ctx, fsdp.Clip{Max: want / 2, NormType: c.normType})
				if err != nil {
					return err
				}
				norms.Store(g.Rank(), norm)
				if math.Abs(norm-want) > c.tolerance*want {
					return fmt.Errorf("norm %v, want %v", norm, want)
				}
				for i, l := range n.Layers {
					want := grads[i].MulScalar(0.5)
					if i < 3 {
						lo, hi := l.W.Rows()
						want = want.Narrow(0, lo, hi-lo)
					}
					if got := l.W.In(s).Grad().To(torch.Float64); !got.AllClose(want, 0.02, 0.02) {
						return fmt.Errorf("layer %d: clipped gradient is off by %v", i, got.Sub(want).Abs().Max().Item())
					}
				}
				return nil
			})
			a, _ := norms.Load(0)
			b, _ := norms.Load(1)
			require.Equal(t, a, b, "the norm is the same on every rank")
		})
	}
}
