package nn_test

import (
	"testing"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/stretchr/testify/require"
)

type block struct {
	nn.Hooks
	Up     nn.LinearLayer `torch:"up_proj"`
	Down   nn.LinearLayer `torch:"down_proj"`
	Absent nn.LinearLayer `torch:"absent"`
	Fixed  *nn.Linear     `torch:"fixed"`
}

type stack struct {
	Blocks []*block  `torch:"blocks"`
	Again  *block    `torch:"again"`
	Table  *nn.Param `torch:"table"`
}

// around is a layer in another's place.
type around struct {
	nn.LinearLayer `torch:""`
}

func newBlock() *block {
	return &block{
		Up:    nn.NewLinear(4, 8, true, torch.Float32, torch.CPU),
		Down:  nn.NewLinear(8, 4, false, torch.Float32, torch.CPU),
		Fixed: nn.NewLinear(4, 4, false, torch.Float32, torch.CPU),
	}
}

func TestReplaceLinears(t *testing.T) {
	b := newBlock()
	m := &stack{Blocks: []*block{b, newBlock()}, Again: b, Table: nn.NewParam(torch.Ones(torch.Float32, 2), true)}
	before := nn.NamedParams(m)
	var names []string
	nn.ReplaceLinears(m, func(name string, l nn.LinearLayer) nn.LinearLayer {
		names = append(names, name)
		return &around{l}
	})
	require.Equal(t, []string{"blocks.0.up_proj", "blocks.0.down_proj", "blocks.1.up_proj", "blocks.1.down_proj"}, names)
	require.IsType(t, &around{}, m.Blocks[1].Down)
	require.Equal(t, before, nn.NamedParams(m), "names and order stay")
}

func TestLinearForwardLowRank(t *testing.T) {
	g := torch.NewGenerator(1)
	s := torch.NewScope(nil)
	defer s.Close()
	l := nn.NewLinear(5, 7, true, torch.Float32, torch.CPU)
	torch.NoGrad(func() {
		for _, p := range nn.Params(l) {
			p.Tensor().NormalInPlace(0, 1, g)
		}
	})
	in, out := l.Features()
	require.Equal(t, []int64{5, 7}, []int64{in, out})
	x := s.Own(torch.Randn(g, torch.Float32, 2, 3, 5)).SetRequiresGrad(true)
	a := s.Own(torch.Randn(g, torch.Float32, 2, 5)).SetRequiresGrad(true)
	b := s.Own(torch.Randn(g, torch.Float32, 7, 2)).SetRequiresGrad(true)
	c := &nn.Call{Scope: s}
	fused := l.ForwardLowRank(c, x, a, b, 0.5)
	composed := nn.Run(l, c, x).AddScaled(x.Linear(a, nil).Linear(b, nil), 0.5)
	require.True(t, fused.AllClose(composed, 1e-5, 1e-5))
	inputs := []*torch.Tensor{x, a, b, l.Weight.In(s), l.Bias.In(s)}
	got := torch.Grad([]*torch.Tensor{fused.Pow(2).Sum()}, inputs, torch.GradOptions{})
	want := torch.Grad([]*torch.Tensor{composed.Pow(2).Sum()}, inputs, torch.GradOptions{})
	for i := range want {
		require.True(t, got[i].AllClose(want[i], 1e-4, 1e-4), "gradient %d", i)
	}
}

func TestNormAndEmbedding(t *testing.T) {
	s := torch.NewScope(nil)
	defer s.Close()
	c := &nn.Call{Scope: s}
	e := nn.NewEmbedding(3, 2, torch.Float32, torch.CPU)
	n := nn.NewRMSNorm(2, 1e-5, torch.Float32, torch.CPU)
	torch.NoGrad(func() {
		e.Weight.Tensor().Copy(torch.FromSlice([]float32{0, 0, 3, 4, -6, 8}, 3, 2))
		n.Weight.Tensor().Copy(torch.FromSlice([]float32{1, 2}))
	})
	x := nn.Run(e, c, s.Own(torch.FromSlice([]int64{1, 2}, 1, 2)))
	require.Equal(t, []float32{3, 4, -6, 8}, torch.Slice[float32](x))
	y := nn.Run(n, c, x)
	root := x.Pow(2).MeanKeep(-1).AddScalar(1e-5).Rsqrt()
	require.True(t, y.AllClose(x.Mul(root).Mul(n.Weight.In(s)), 1e-6, 1e-6))
	half := nn.Run(n, c, x.To(torch.BFloat16))
	require.Equal(t, torch.BFloat16, half.DType(), "an fp32 norm serves a bf16 model")
}
