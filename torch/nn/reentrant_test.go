package nn

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/torch"
)

func TestParityReentrantGradientsAreBitEqual(t *testing.T) {
	m := newStack(0.4)
	want := gradsOf(t, m, m.loss, 7)
	for _, b := range m.Blocks {
		b.SetCheckpoint(true)
		b.SetCheckpointReentrant(true)
	}
	m.Drop.SetCheckpoint(true)
	m.Drop.SetCheckpointReentrant(true)
	loss := func(c *Call) *torch.Tensor { // the input requires grad, as after EnableInputRequireGrads
		x := input3(c.Scope).MulScalar(0.1).SetRequiresGrad(true)
		y := Run(m, c, x)
		return y.Mul(y).Sum()
	}
	require.Equal(t, want, gradsOf(t, m, loss, 7))

	for _, outer := range []bool{false, true} { // a checkpointed stack of checkpointed blocks: kinds may nest
		m.SetCheckpoint(true)
		m.SetCheckpointReentrant(outer)
		require.Equal(t, want, gradsOf(t, m, loss, 7), "re-entrant outside: %v", outer)
		for _, b := range m.Blocks {
			b.SetCheckpointReentrant(!outer)
		}
		require.Equal(t, want, gradsOf(t, m, loss, 7), "mixed, re-entrant outside: %v", outer)
		for _, b := range m.Blocks {
			b.SetCheckpointReentrant(true)
		}
	}
}

// frozenFirst is an embedding whose parameters are frozen, and a trained layer after it.
type frozenFirst struct {
	Embed *Embedding
	Body  *Linear
}

func newFrozenFirst() *frozenFirst {
	m := &frozenFirst{NewEmbedding(4, 3, torch.Float64, torch.CPU), NewLinear(3, 3, true, torch.Float64, torch.CPU)}
	ResetParameters(m, torch.NewGenerator(1))
	m.Embed.Weight.SetTrainable(false)
	return m
}

func (m *frozenFirst) loss(c *Call) *torch.Tensor {
	ids := c.Scope.Own(torch.FromSlice([]int64{3, 1}))
	return Run(m.Body, c, Run(m.Embed, c, ids)).Pow(2).Sum()
}

func TestEnableInputRequireGrads(t *testing.T) {
	m := newFrozenFirst()
	want := gradsOf(t, m, m.loss, 1)
	m.Body.SetCheckpoint(true)
	m.Body.SetCheckpointReentrant(true)
	s := torch.NewScope(nil)
	defer s.Close()
	require.Error(t, torch.Try(func() { m.loss(&Call{Scope: s, Training: true}).Backward() }),
		"autograd sees no input that requires grad")
	hook := EnableInputRequireGrads(m.Embed)
	require.Equal(t, want, gradsOf(t, m, m.loss, 1))
	other := EnableInputRequireGrads(m.Embed)
	m.Embed.RemoveHook(hook)
	require.Equal(t, want, gradsOf(t, m, m.loss, 1))
	m.Embed.RemoveHook(other)
	require.Empty(t, m.Embed.hooks)
	m.Body.SetCheckpointReentrant(false)
	require.Equal(t, want, gradsOf(t, m, m.loss, 1), "the non-reentrant kind needs no hook")
}

// A running statistic counts a batch once, although the layer runs twice.
func TestBatchNormInsideCheckpointCountsOnce(t *testing.T) {
	run := func(checkpoint, reentrant bool) (*BatchNorm1d, [][]float64) {
		m := NewBatchNorm1d(3, BatchNormConfig{}, torch.Float64, torch.CPU)
		m.ResetParameters(nil)
		m.SetCheckpoint(checkpoint)
		m.SetCheckpointReentrant(reentrant)
		return m, gradsOf(t, m, func(c *Call) *torch.Tensor {
			return Run(m, c, input3(c.Scope).SetRequiresGrad(true)).Pow(3).Sum()
		}, 1)
	}
	plain, want := run(false, false)
	for _, reentrant := range []bool{false, true} {
		m, got := run(true, reentrant)
		require.Equal(t, want, got)
		require.Equal(t, torch.Slice[float64](plain.RunningVar.Tensor()), torch.Slice[float64](m.RunningVar.Tensor()))
		require.Equal(t, 1.0, m.Batches.Tensor().Item())
	}
}

func TestErrorInReentrantRecomputation(t *testing.T) {
	mine := errors.New("mine")
	runs := 0
	layer := NewFunc(func(x *torch.Tensor) *torch.Tensor {
		if runs++; runs == 2 {
			torch.Throw(mine)
		}
		return x.Exp()
	})
	layer.SetCheckpoint(true)
	layer.SetCheckpointReentrant(true)
	s := torch.NewScope(nil)
	defer s.Close()
	x := input3(s).SetRequiresGrad(true)
	y := Run(layer, &Call{Scope: s, Training: true}, x)
	err := torch.Try(func() { y.Sum().Backward() })
	require.ErrorIs(t, err, mine)
	require.ErrorContains(t, err, "recompute the checkpointed *nn.Func")
}

// Backward runs outside the region in which the forward ran.
func TestParityCheckpointUnderAutocast(t *testing.T) {
	m := NewSequential(NewLinear(3, 4, true, torch.Float32, torch.CPU), Tanh(), NewLinear(4, 2, true, torch.Float32, torch.CPU))
	ResetParameters(m, torch.NewGenerator(3))
	run := func() (list [][]float32) {
		s := torch.NewScope(nil)
		defer s.Close()
		x := input3(s).To(torch.Float32).Detach().SetRequiresGrad(true)
		var y *torch.Tensor
		torch.Autocast(torch.CPUType, torch.BFloat16, func() { y = Run(m, &Call{Scope: s, Training: true}, x) })
		require.Equal(t, torch.BFloat16, y.DType())
		y.To(torch.Float32).Pow(2).Sum().Backward()
		list = append(list, torch.Slice[float32](x.Grad()))
		for _, p := range Params(m) {
			list = append(list, torch.Slice[float32](p.In(s).Grad()))
			p.Tensor().SetGrad(nil)
		}
		return list
	}
	compare := func() {
		m.SetCheckpoint(false)
		want := run()
		m.SetCheckpoint(true)
		m.SetCheckpointReentrant(false)
		require.Equal(t, want, run())
		m.SetCheckpointReentrant(true)
		require.Equal(t, want, run())
	}
	compare()
	torch.Autocast(torch.CPUType, torch.Float16, compare) // and a backward under a state that is not the forward's
}
