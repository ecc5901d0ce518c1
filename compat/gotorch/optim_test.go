package gotorch_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	torch "github.com/wangkuiyi/gotorch"
	"github.com/wangkuiyi/gotorch/nn"

	gofsdp "github.com/gofsdp/gofsdp/torch"
)

// descend takes steps with the gradient 2w − 2 and gives the values of w, which starts at 3.
func descend(opt torch.Optimizer, steps int) []float64 {
	w := torch.NewTensor([]float64{3})
	w.Torch().SetRequiresGrad(true)
	opt.AddParameters([]torch.Tensor{w})
	one := torch.NewTensor([]float64{1})
	var path []float64
	for range steps {
		opt.ZeroGrad()
		d := w.Sub(one, 1)
		d.Mul(d).Sum().Backward()
		opt.Step()
		path = append(path, w.Item().(float64))
	}
	return path
}

func TestSGD(t *testing.T) {
	const lr, momentum, decay = 0.1, 0.9, 0.01
	var want []float64
	w, v := 3.0, 0.0
	for i := range 4 {
		g := 2*w - 2 + decay*w
		if i == 0 {
			v = g
		} else {
			v = momentum*v + g
		}
		w -= lr * (g + momentum*v)
		want = append(want, w)
	}
	require.InDeltaSlice(t, want, descend(torch.SGD(lr, momentum, 0, decay, true), 4), 1e-12)
	require.ErrorContains(t, gofsdp.Try(func() { torch.SGD(0.1, 0, 0, 0, true) }), "Nesterov")
}

func TestAdam(t *testing.T) {
	for _, beta1 := range []float64{0.5, 0} {
		const lr, beta2, decay = 0.1, 0.999, 0.02
		var want []float64
		w, m, v := 3.0, 0.0, 0.0
		for i := range 4 {
			g := 2*w - 2 + decay*w
			m, v = beta1*m+(1-beta1)*g, beta2*v+(1-beta2)*g*g
			n := float64(i + 1)
			w -= lr * m / (1 - math.Pow(beta1, n)) / (math.Sqrt(v/(1-math.Pow(beta2, n))) + 1e-8)
			want = append(want, w)
		}
		require.InDeltaSlice(t, want, descend(torch.Adam(lr, beta1, beta2, decay), 4), 1e-12, "beta1 %v", beta1)
	}
}

func TestLearningRates(t *testing.T) {
	require.Equal(t, []float64{3}, descend(torch.SGD(0, 0, 0, 0, false), 1))
	opt := torch.SGD(0.1, 0, 0, 0, false)
	opt.AddParameters([]torch.Tensor{torch.Ones([]int64{1}, true)})
	opt.SetLR(5)
	require.InDeltaSlice(t, []float64{2.6}, descend(opt, 1), 1e-12, "a group added later has the first rate")
	opt.Close()
	opt.Close()
}

// The gradients stay, as zeros: momentum goes on.
func TestZeroGradKeepsGradients(t *testing.T) {
	w := torch.Ones([]int64{1}, true)
	opt := torch.SGD(1, 0.5, 0, 0, false)
	opt.AddParameters([]torch.Tensor{w})
	w.Sum().Backward()
	opt.Step()
	opt.ZeroGrad()
	require.Equal(t, float32(0), w.Grad().Item())
	opt.Step()
	require.Equal(t, float32(-0.5), w.Item())
}

// Module.To changes parameters in place: an optimiser that knows them goes on.
func TestModuleToKeepsOptimiser(t *testing.T) {
	l := nn.Linear(2, 1, false)
	opt := torch.SGD(1, 0, 0, 0, false)
	opt.AddParameters(l.Parameters())
	l.To(torch.NewDevice("cpu"), torch.Double)
	before := l.Weight.Index(0, 0).Item().(float64)
	l.Forward(torch.Ones([]int64{1, 2}, false).CastTo(torch.Double)).Sum().Backward()
	opt.Step()
	require.InDelta(t, before-1, l.Weight.Index(0, 0).Item(), 1e-12)
}
