package amp

import (
	"encoding/json"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/gofsdp/gofsdp/torch/optim"
)

func sgd(t *testing.T, lr float64, values ...float32) (*nn.Param, *optim.SGD) {
	t.Helper()
	p := nn.NewParam(torch.FromSlice(values), true)
	opt, err := optim.NewSGD([]*nn.Param{p}, optim.SGDConfig{LR: lr})
	require.NoError(t, err)
	t.Cleanup(opt.Close)
	return p, opt
}

func setGrad(p *nn.Param, values ...float32) { p.Tensor().SetGrad(torch.FromSlice(values)) }

func TestScaledStepIsThePlainStep(t *testing.T) {
	p, opt := sgd(t, 0.5, 1, 2)
	g := NewGradScaler(GradScalerConfig{})
	s := torch.NewScope(nil)
	defer s.Close()
	loss := p.In(s).Pow(2).Sum()
	scaled := g.Scale(loss)
	require.Equal(t, 65536*5.0, scaled.Item())
	scaled.Backward()
	g.Unscale(opt)
	require.Equal(t, []float32{2, 4}, torch.Slice[float32](p.Tensor().Grad()))
	require.ErrorContains(t, torch.Try(func() { g.Unscale(opt) }), "second time")
	require.True(t, g.Step(opt))
	require.Equal(t, []float32{0, 0}, torch.Slice[float32](p.Tensor()))
	require.ErrorContains(t, torch.Try(func() { g.Step(opt) }), "second time")
	require.ErrorContains(t, torch.Try(func() { g.Unscale(opt) }), "after Step")
	g.Update()
	require.ErrorContains(t, torch.Try(g.Update), "without a Step")
}

func TestGrowthAndBackoff(t *testing.T) {
	p, opt := sgd(t, 1, 0, 0)
	other, second := sgd(t, 1, 0)
	g := NewGradScaler(GradScalerConfig{InitScale: 8, GrowthFactor: 3, BackoffFactor: 0.25, GrowthInterval: 2})
	step := func(a, b float32) (bool, bool) {
		setGrad(p, a, 8)
		setGrad(other, b)
		x, y := g.Step(opt), g.Step(second)
		g.Update()
		return x, y
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for i, c := range []struct {
		a, b  float32
		x, y  bool
		scale float64
		good  int
	}{
		{8, 8, true, true, 8, 1}, {8, 8, true, true, 24, 0}, {8, 8, true, true, 24, 1},
		{inf, 8, false, true, 6, 0}, // one optimiser skips, the other does not
		{8, nan, true, false, 1.5, 0}, {8, 8, true, true, 1.5, 1}, {8, 8, true, true, 4.5, 0},
	} {
		x, y := step(c.a, c.b)
		require.Equal(t, []any{c.x, c.y, c.scale, c.good}, []any{x, y, g.GetScale(), g.State().GrowthTracker}, "step %d", i)
	}
	require.False(t, math.IsNaN(p.Tensor().Sum().Item()+other.Tensor().Sum().Item()))
}

func TestScaleStaysFinite(t *testing.T) {
	p, opt := sgd(t, 1, 0)
	g := NewGradScaler(GradScalerConfig{InitScale: 3e38, GrowthInterval: 1})
	setGrad(p, 1)
	g.Step(opt)
	g.Update()
	require.Equal(t, 3e38, g.GetScale())
}

func TestStateRoundTrip(t *testing.T) {
	p, opt := sgd(t, 1, 0)
	g := NewGradScaler(GradScalerConfig{GrowthInterval: 3})
	setGrad(p, 1)
	g.Step(opt)
	g.Update()
	data, err := json.Marshal(g.State())
	require.NoError(t, err)
	require.JSONEq(t, `{"scale":65536,"growth_factor":2,"backoff_factor":0.5,"growth_interval":3,"_growth_tracker":1}`, string(data))
	var state State
	require.NoError(t, json.Unmarshal(data, &state))
	other := NewGradScaler(GradScalerConfig{InitScale: 2})
	require.NoError(t, other.LoadState(state))
	require.Equal(t, g.State(), other.State())
	require.Error(t, other.LoadState(State{}))
	require.Equal(t, g.State(), other.State())
}

func TestRanksAgreeToSkip(t *testing.T) {
	p, opt := sgd(t, 1, 0)
	g := NewGradScaler(GradScalerConfig{Reduce: func(found *torch.Tensor) error { found.Fill(1); return nil }})
	setGrad(p, 1) // finite here, not on the other rank
	require.False(t, g.Step(opt))
	g.Update()
	require.Equal(t, 32768.0, g.GetScale())

	mine := errors.New("mine")
	g = NewGradScaler(GradScalerConfig{Reduce: func(*torch.Tensor) error { return mine }})
	require.ErrorIs(t, torch.Try(func() { g.Step(opt) }), mine)
}

func TestDisabledAndRefusals(t *testing.T) {
	p, opt := sgd(t, 1, 1)
	g := NewGradScaler(GradScalerConfig{Disabled: true})
	x := torch.Ones(torch.Float32)
	require.Same(t, x, g.Scale(x))
	setGrad(p, 1)
	g.Unscale(opt)
	require.True(t, g.Step(opt))
	g.Update()
	require.Equal(t, 1.0, g.GetScale())
	require.Zero(t, p.Tensor().Item())

	half := nn.NewParam(torch.Ones(torch.Float16, 1), true)
	half.Tensor().SetGrad(torch.Ones(torch.Float16, 1))
	opt16, err := optim.NewSGD([]*nn.Param{half}, optim.SGDConfig{})
	require.NoError(t, err)
	require.ErrorContains(t, torch.Try(func() { NewGradScaler(GradScalerConfig{}).Step(opt16) }), "float16 gradient")
	require.ErrorContains(t, torch.Try(func() { NewGradScaler(GradScalerConfig{GrowthFactor: 0.5}) }), "growth factor 0.5")
}
