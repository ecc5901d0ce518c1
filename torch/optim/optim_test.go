package optim

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/stretchr/testify/require"
)

func param(values ...float64) *nn.Param { return nn.NewParam(torch.FromSlice(values), true) }

func setGrad(p *nn.Param, values ...float64) {
	g := torch.FromSlice(values)
	defer g.Free()
	p.Tensor().SetGrad(g)
}

func values(p *nn.Param) []float64 { return torch.Slice[float64](p.Tensor()) }

// The gradient of step k at element i: changes sign and size.
func gradient(k, i int) float64 { return math.Sin(float64(3*k+i)) * math.Pow(10, float64(i%5-2)) }

const elements = 37 // no multiple of a vector's length

func start() []float64 {
	w := make([]float64, elements)
	for i := range w {
		w[i] = math.Cos(float64(i))
	}
	return w
}

// adamReference is the update of PyTorch's single-tensor implementation.
func adamReference(w []float64, c AdamConfig, decoupled bool, steps int) {
	m, v, vmax := make([]float64, len(w)), make([]float64, len(w)), make([]float64, len(w))
	for k := 1; k <= steps; k++ {
		for i := range w {
			g := gradient(k, i)
			if c.Maximize {
				g = -g
			}
			if decoupled {
				w[i] *= 1 - c.LR*c.WeightDecay
			} else {
				g += c.WeightDecay * w[i]
			}
			m[i] += (g - m[i]) * (1 - c.Beta1)
			v[i] = c.Beta2*v[i] + (1-c.Beta2)*g*g
			second := v[i]
			if c.AMSGrad {
				vmax[i] = max(vmax[i], v[i])
				second = vmax[i]
			}
			bias1, bias2 := 1-math.Pow(c.Beta1, float64(k)), 1-math.Pow(c.Beta2, float64(k))
			w[i] -= c.LR / bias1 * m[i] / (math.Sqrt(second)/math.Sqrt(bias2) + c.Eps)
		}
	}
}

func TestParityAdam(t *testing.T) {
	for name, c := range map[string]AdamConfig{
		"defaults": {},
		"decay":    {LR: 0.05, WeightDecay: 0.1},
		"betas":    {LR: 0.01, Beta1: 0.5, Beta2: 0.7, Eps: 1e-3},
		"amsgrad":  {LR: 0.02, AMSGrad: true, WeightDecay: 0.01},
		"maximize": {LR: 0.02, Maximize: true},
	} {
		for i := range 4 {
			decoupled := i%2 == 0
			c.Foreach = i >= 2
			t.Run(name, func(t *testing.T) {
				p := param(start()...)
				a, err := newAdam("Adam", []*nn.Param{p}, c, decoupled)
				require.NoError(t, err)
				defer a.Close()
				for k := 1; k <= 7; k++ {
					g := make([]float64, elements)
					for i := range g {
						g[i] = gradient(k, i)
					}
					setGrad(p, g...)
					a.Step()
				}
				want := start()
				adamReference(want, c.withDefaults(), decoupled, 7)
				require.InDeltaSlice(t, want, values(p), 1e-12)
			})
		}
	}
}

func TestParitySGD(t *testing.T) {
	for name, c := range map[string]SGDConfig{
		"plain":     {LR: 0.1},
		"momentum":  {LR: 0.1, Momentum: 0.9, WeightDecay: 0.01},
		"dampening": {LR: 0.1, Momentum: 0.9, Dampening: 0.3},
		"nesterov":  {LR: 0.1, Momentum: 0.8, Nesterov: true},
		"maximize":  {LR: 0.1, Momentum: 0.8, Maximize: true},

		"foreach":           {LR: 0.1, WeightDecay: 0.1, Foreach: true},
		"foreach momentum":  {LR: 0.1, Momentum: 0.9, WeightDecay: 0.01, Foreach: true},
		"foreach dampening": {LR: 0.1, Momentum: 0.9, Dampening: 0.3, Foreach: true},
		"foreach nesterov":  {LR: 0.1, Momentum: 0.8, Nesterov: true, Maximize: true, Foreach: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := param(start()...)
			s, err := NewSGD([]*nn.Param{p}, c)
			require.NoError(t, err)
			defer s.Close()
			want, buffer := start(), make([]float64, elements)
			for k := 1; k <= 5; k++ {
				g := make([]float64, elements)
				for i := range g {
					g[i] = gradient(k, i)
					d := g[i]
					if c.Maximize {
						d = -d
					}
					d += c.WeightDecay * want[i]
					if c.Momentum != 0 {
						if k == 1 {
							buffer[i] = d
						} else {
							buffer[i] = c.Momentum*buffer[i] + (1-c.Dampening)*d
						}
						if c.Nesterov {
							d += c.Momentum * buffer[i]
						} else {
							d = buffer[i]
						}
					}
					want[i] -= c.LR * d
				}
				setGrad(p, g...)
				s.Step()
			}
			require.InDeltaSlice(t, want, values(p), 1e-12)
		})
	}
}

func TestStepSkipsWhatHasNoGradientAndNoElements(t *testing.T) {
	a, b, empty := param(1, 2), param(3), param()
	o, err := NewAdamW([]*nn.Param{a, b, empty}, AdamConfig{})
	require.NoError(t, err)
	defer o.Close()
	o.Step() // nothing to do
	require.Empty(t, o.State())
	setGrad(a, 1, 1)
	setGrad(empty)
	o.Step()
	require.Equal(t, []float64{3}, values(b))
	require.NotEqual(t, []float64{1, 2}, values(a))
	var names []string
	for _, s := range o.State() {
		names = append(names, s.String())
	}
	require.Equal(t, []string{"step of parameter 0", "exp_avg of parameter 0", "exp_avg_sq of parameter 0",
		"step of parameter 2", "exp_avg of parameter 2", "exp_avg_sq of parameter 2"}, names)
	require.Equal(t, []int64{0}, o.State()[4].Tensor.Shape())
	o.ZeroGrad()
	require.Nil(t, a.Tensor().Grad())
}

func TestMixedDTypesInOneGroup(t *testing.T) {
	double := param(1, 2)
	single := nn.NewParam(torch.FromSlice([]float32{1, 2}), true)
	half := nn.NewParam(torch.FromSlice([]float32{1, 2}).To(torch.BFloat16), true)
	o, err := NewAdamW([]*nn.Param{double, single, half}, AdamConfig{LR: 0.5})
	require.NoError(t, err)
	defer o.Close()
	for _, p := range []*nn.Param{double, single, half} {
		p.Tensor().SetGrad(p.Tensor().ZerosLike().Fill(1))
	}
	o.Step()
	for _, p := range []*nn.Param{double, single, half} {
		got := torch.Slice[float64](p.Tensor().Detach().To(torch.Float64))
		require.InDeltaSlice(t, []float64{0.495, 1.49}, got, 0.02, p.Tensor().DType())
	}
}

func TestGroupsAndLearningRates(t *testing.T) {
	a, b := param(1), param(1)
	o, err := NewAdamW([]*nn.Param{a}, AdamConfig{LR: 0.1, WeightDecay: 0.5})
	require.NoError(t, err)
	defer o.Close()
	o.AddGroup([]*nn.Param{b}, 0.2, 0)
	o.ScaleLR(0.5)
	require.Equal(t, 0.05, o.LR())
	require.Equal(t, 0.1, o.Groups()[1].LR)
	setGrad(a, 0)
	setGrad(b, 0)
	o.Step()
	require.InDelta(t, 1-0.05*0.5, values(a)[0], 1e-15)
	require.Equal(t, 1.0, values(b)[0])
	o.SetLR(0)
	setGrad(a, 3)
	before := values(a)
	o.Step()
	require.Equal(t, before, values(a))
}

func TestSplitDecay(t *testing.T) {
	p := func() *nn.Param { return param(1) }
	frozen := p()
	frozen.SetTrainable(false)
	named := []nn.Named{{Name: "model.layers.0.self_attn.q_proj.weight", Param: p()}, {Name: "q_proj.bias", Param: p()},
		{Name: "model.layers.0.input_layernorm.weight", Param: p()}, {Name: "model.norm.weight", Param: p()},
		{Name: "self_attn.q_norm.weight", Param: p()}, {Name: "normaliser.weight", Param: p()}, {Name: "x", Param: frozen}}
	decay, other := SplitDecay(named)
	require.Equal(t, []*nn.Param{named[0].Param, named[5].Param}, decay)
	require.Equal(t, []*nn.Param{named[1].Param, named[2].Param, named[3].Param, named[4].Param}, other)
}

func TestStateRoundTrip(t *testing.T) {
	run := func(o *Adam, p *nn.Param, from, to int) {
		for k := from; k < to; k++ {
			g := make([]float64, elements)
			for i := range g {
				g[i] = gradient(k, i)
			}
			setGrad(p, g...)
			o.Step()
		}
	}
	p := param(start()...)
	a, err := NewAdamW([]*nn.Param{p}, AdamConfig{})
	require.NoError(t, err)
	defer a.Close()
	run(a, p, 0, 3)
	q := param(values(p)...)
	b, err := NewAdamW([]*nn.Param{q}, AdamConfig{})
	require.NoError(t, err)
	defer b.Close()
	require.NoError(t, b.LoadState(a.State()))
	run(a, p, 3, 6)
	run(b, q, 3, 6)
	require.Equal(t, values(p), values(q))
	require.Equal(t, 6.0, b.State()[0].Tensor.Item())
	require.NoError(t, b.LoadState(nil))
	require.Empty(t, b.State())
	b.InitState()
	require.Len(t, b.State(), 3)
}

func TestLoadStateNamesTheFault(t *testing.T) {
	p := param(1, 2)
	o, err := NewAdamW([]*nn.Param{p}, AdamConfig{})
	require.NoError(t, err)
	defer o.Close()
	setGrad(p, 1, 1)
	o.Step()
	good := o.State()
	change := func(f func(s []NamedState) []NamedState) error {
		return o.LoadState(f(append([]NamedState(nil), good...)))
	}
	for want, f := range map[string]func(s []NamedState) []NamedState{
		"exp_avg of parameter 7, but there are 1 parameters":           func(s []NamedState) []NamedState { s[1].Index = 7; return s },
		"momentum of parameter 0 is unknown; it has [step exp_avg exp": func(s []NamedState) []NamedState { s[1].Name = "momentum"; return s },
		"exp_avg of parameter 0 has shape [3], want [2]": func(s []NamedState) []NamedState {
			s[1].Tensor = torch.Zeros(torch.Float64, 3)
			return s
		},
		"step of parameter 0 is given twice":            func(s []NamedState) []NamedState { return append(s, s[0]) },
		"parameter 0 has 2 of the state tensors [step ": func(s []NamedState) []NamedState { return s[:2] },
		"AdamW state: exp_avg of parameter 0 is nil":    func(s []NamedState) []NamedState { s[1].Tensor = nil; return s },
	} {
		require.ErrorContains(t, change(f), want)
	}
	require.Equal(t, 1.0, o.State()[0].Tensor.Item())
}

func TestConfigsAreChecked(t *testing.T) {
	for _, c := range []AdamConfig{{LR: -1}, {Beta1: 1}, {Beta2: -0.1}, {Eps: -1}, {WeightDecay: -1}, {LR: math.NaN()}} {
		_, err := NewAdamW(nil, c)
		require.Error(t, err)
	}
	for _, c := range []SGDConfig{{LR: -1}, {Momentum: -1}, {Nesterov: true}, {Nesterov: true, Momentum: 1, Dampening: 1}} {
		_, err := NewSGD(nil, c)
		require.Error(t, err)
	}
}

func TestClipGradNorm(t *testing.T) {
	for _, c := range []struct{ kind, norm float64 }{{1, 19}, {2, 13}, {math.Inf(1), 12}, {3, math.Cbrt(27 + 64 + 1728)}} {
		a, b, none, empty := param(0, 0), param(0), param(0), param()
		params := []*nn.Param{a, none, b, empty}
		setGrad(a, 3, -4)
		setGrad(b, 12)
		setGrad(empty)
		require.InDelta(t, c.norm, GradNorm(params, c.kind), 1e-12)
		require.InDelta(t, c.norm, ClipGradNorm(params, 100, c.kind), 1e-12)
		require.Equal(t, []float64{3, -4}, torch.Slice[float64](a.Tensor().Grad()))
		require.InDelta(t, c.norm, ClipGradNorm(params, 2, c.kind), 1e-12)
		coef := 2 / (c.norm + 1e-6)
		require.InDeltaSlice(t, []float64{3 * coef, -4 * coef}, torch.Slice[float64](a.Tensor().Grad()), 1e-12)
		require.InDelta(t, 2, GradNorm(params, c.kind), 1e-5)
	}
	require.Zero(t, ClipGradNorm([]*nn.Param{param(1)}, 1, 2))
	p := param(0, 0)
	setGrad(p, math.NaN(), 1)
	require.True(t, math.IsNaN(ClipGradNorm([]*nn.Param{p}, 1, 2)))
	require.True(t, math.IsNaN(torch.Slice[float64](p.Tensor().Grad())[1]))
}

func TestStepsLeaveNothingBehind(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	p := param(start()...)
	o, err := NewAdamW([]*nn.Param{p}, AdamConfig{AMSGrad: true})
	require.NoError(t, err)
	step := func() {
		s := torch.NewScope(nil)
		defer s.Close()
		w := p.In(s)
		w.Mul(w).Sum().Backward()
		ClipGradNorm([]*nn.Param{p}, 1, 2)
		o.Step()
		o.ZeroGrad()
	}
	step()
	runtime.GC()
	require.Eventually(t, func() bool { // clean-ups of earlier tests' tensors
		before := torch.MemoryStats()
		time.Sleep(10 * time.Millisecond)
		return before == torch.MemoryStats()
	}, 5*time.Second, time.Millisecond)
	before := torch.MemoryStats()
	for range 50 {
		step()
	}
	after := torch.MemoryStats()
	require.Equal(t, before.LiveTensors, after.LiveTensors)
	require.Equal(t, before.LiveBytes, after.LiveBytes)
	o.Close()
	require.Equal(t, before.LiveTensors-4, torch.MemoryStats().LiveTensors)
}

func TestForeachLeavesNothingAndKeepsGradients(t *testing.T) {
	p, q := param(1, 2), param(3)
	a, err := NewAdamW([]*nn.Param{p}, AdamConfig{Foreach: true, WeightDecay: 0.1, AMSGrad: true})
	require.NoError(t, err)
	s, err := NewSGD([]*nn.Param{q}, SGDConfig{Foreach: true, Momentum: 0.9, Nesterov: true, WeightDecay: 0.1})
	require.NoError(t, err)
	setGrad(p, 1, -1)
	setGrad(q, 2)
	a.Step()
	s.Step()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	before := torch.MemoryStats().LiveTensors
	for range 10 {
		a.Step()
		s.Step()
	}
	require.Equal(t, before, torch.MemoryStats().LiveTensors)
	require.Equal(t, 2.0, q.Tensor().Grad().Item())
}
