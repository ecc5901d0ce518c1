package nn_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	torch "github.com/wangkuiyi/gotorch"
	"github.com/wangkuiyi/gotorch/nn"
	F "github.com/wangkuiyi/gotorch/nn/functional"

	gofsdp "github.com/gofsdp/gofsdp/torch"
)

type net struct {
	nn.Module
	Scale  torch.Tensor
	Absent torch.Tensor
	Mean   torch.Tensor `gotorch:"buffer"`
	Blocks []*nn.LinearModule
	Head   nn.IModule
	Rows   [2]torch.Tensor
	None   *nn.LinearModule
	name   string
}

func newNet() *net {
	one := func() torch.Tensor { return torch.Ones([]int64{1}, true) }
	n := &net{
		Scale:  one(),
		Mean:   torch.Ones([]int64{1}, false),
		Blocks: []*nn.LinearModule{nn.Linear(2, 2, true), nil, nn.Linear(2, 2, false)},
		Head:   nn.Sequential(nn.Conv2d(1, 1, 1, 1, 0, 1, 1, false, "zeros"), nn.Functional(torch.Relu)),
		Rows:   [2]torch.Tensor{one(), one()},
		name:   "unexported fields that are no part of the model are fine",
	}
	n.Init(n)
	return n
}

func TestNamesAndOrder(t *testing.T) {
	n := newNet()
	require.Equal(t, "nn_test.net", n.Name())
	named := n.NamedParameters()
	order := []string{"net.Scale", "net.Blocks[0].Weight", "net.Blocks[0].Bias", "net.Blocks[2].Weight", "net.Head.Modules[0].Weight",
		"net.Rows[0]", "net.Rows[1]"}
	require.Len(t, named, len(order))
	for i, p := range n.Parameters() {
		require.Equal(t, named[order[i]].T, p.T, order[i])
	}
	require.Len(t, n.Buffers(), 1)
	require.Contains(t, n.NamedBuffers(), "net.Mean")
	require.Len(t, n.StateDict(), len(order)+1)
}

func TestTrainReachesEveryModule(t *testing.T) {
	n := newNet()
	n.Train(false)
	var seen []string
	n.Apply(func(m nn.IModule) {
		require.False(t, m.IsTraining())
		seen = append(seen, m.(*nn.Module).Outer().Name())
	})
	require.Equal(t, []string{"nn_test.net", "nn.LinearModule", "nn.LinearModule", "nn.SequentialModule", "nn.Conv2dModule",
		"nn.FunctionalModule"}, seen)
}

func TestSetStateDict(t *testing.T) {
	a, b := newNet(), newNet()
	sd := a.StateDict()
	require.NoError(t, b.SetStateDict(sd))
	require.Equal(t, a.Blocks[2].Weight.T, b.Blocks[2].Weight.T)

	b = newNet()
	before := b.Scale.T
	delete(sd, "net.Rows[1]")
	require.ErrorContains(t, b.SetStateDict(sd), `no tensor "net.Rows[1]"`)
	sd = a.StateDict()
	sd["net.Other"] = a.Scale
	require.ErrorContains(t, b.SetStateDict(sd), `no tensor "net.Other"`)
	require.Equal(t, before, b.Scale.T, "an error leaves the model as it was")
}

func fault(t *testing.T, f func()) string {
	t.Helper()
	err := gofsdp.Try(f)
	require.Error(t, err)
	return err.Error()
}

func TestFaults(t *testing.T) {
	require.Contains(t, fault(t, func() { new(net).Parameters() }), "its constructor calls m.Init(m)")
	type pointer struct{ *nn.Module }
	require.Contains(t, fault(t, func() { p := &pointer{&nn.Module{}}; p.Init(p) }), "by value")
	type hidden struct {
		nn.Module
		l *nn.LinearModule
	}
	h := &hidden{l: nn.Linear(1, 1, false)}
	h.Init(h)
	require.Contains(t, fault(t, func() { h.Train(true) }), "field l of nn_test.hidden")

	x := torch.Ones([]int64{1, 1}, false)
	require.Contains(t, fault(t, func() { nn.Sequential().Forward(x) }), "without modules")
	require.Contains(t, fault(t, func() { nn.Sequential(newNet()).Forward(x) }), "no method Forward")
	require.Contains(t, fault(t, func() { nn.Sequential(nn.Linear(1, 1, false)).Forward(x, x) }), "takes 1 values, but gets 2")
	require.Contains(t, fault(t, func() { nn.Sequential(nn.Linear(1, 1, false)).Forward(1) }), "takes a gotorch.Tensor")
	require.Contains(t, fault(t, func() { nn.Sequential(nn.Linear(1, 1, false)).Forward(nil) }), "takes a gotorch.Tensor")
}

func TestSequentialInSequential(t *testing.T) {
	inner := nn.Sequential(nn.Functional(torch.Sigmoid), nn.Functional(torch.Relu))
	x := torch.Full([]int64{1}, 0, false)
	require.Equal(t, float32(0.5), nn.Sequential(inner, nn.Functional(torch.Relu)).Forward(x).(torch.Tensor).Item())
}

func TestBatchNorm(t *testing.T) {
	b := nn.BatchNorm2d(1, 0, 0.5, true, true)
	x := torch.NewTensor([][][][]float32{{{{1, 3}}}})
	require.Equal(t, []float32{-1, 1}, gofsdp.Slice[float32](b.Forward(x).Torch()))
	require.Equal(t, float32(1), b.RunningMean.Item(), "halfway from 0 to the batch's 2")
	b.Train(false)
	b.RunningVar = torch.Full([]int64{1}, 4, false)
	require.Equal(t, []float32{0, 1}, gofsdp.Slice[float32](b.Forward(x).Torch()))
	b = nn.BatchNorm2d(1, 0, 0.5, false, false)
	b.Train(false)
	require.Equal(t, []float32{-1, 1}, gofsdp.Slice[float32](b.Forward(x).Torch()))
}

// Targets outside [0, 1], which libtorch refuses, give the same formula.
func TestBinaryCrossEntropyBeyondTargets(t *testing.T) {
	grad := func(target []float64, how string) (float64, []float64) {
		x := torch.NewTensor([]float64{0.25, 0.5, 1})
		x.Torch().SetRequiresGrad(true)
		weight := torch.NewTensor([]float64{1, 2, 1})
		loss := F.BinaryCrossEntropy(x, torch.NewTensor(target), weight, how).Sum()
		loss.Backward()
		return loss.Item().(float64), gofsdp.Slice[float64](x.Grad().Torch())
	}
	for _, how := range []string{"none", "mean", "sum"} {
		at := func(y float64) (float64, []float64) { return grad([]float64{y, y, 1}, how) }
		loss0, grad0 := at(0)
		loss1, grad1 := at(1)
		loss2, grad2 := at(2)
		require.InDelta(t, 2*loss1-loss0, loss2, 1e-12, how)
		for i := range grad2 {
			require.InDelta(t, 2*grad1[i]-grad0[i], grad2[i], 1e-12, how)
		}
	}
	require.Contains(t, fault(t, func() { grad([]float64{1}, "mean") }), "the input has shape [3], the target [1]")
	column := torch.Full([]int64{3, 1}, 0.5, false)
	require.Equal(t, []int64{3, 1}, F.BinaryCrossEntropy(column, torch.Ones([]int64{3}, false), torch.Tensor{}, "none").Shape())
	require.Contains(t, fault(t, func() { grad([]float64{1, 1, 1}, "median") }), `"median" is not one of`)
}
