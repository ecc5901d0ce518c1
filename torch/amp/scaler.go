// Package amp holds GradScaler, the loss scaling that training in float16 needs. Autocast itself is torch.Autocast;
// training in bfloat16 needs no scaling.
//
//	scaler := amp.NewGradScaler(amp.GradScalerConfig{})
//	for … {
//		var loss *torch.Tensor
//		torch.Autocast(torch.CUDAType, torch.Float16, func() { loss = … })
//		scaler.Scale(loss).Backward()
//		scaler.Unscale(opt) // only where gradients are looked at, e.g. clipped, before the step
//		scaler.Step(opt)
//		scaler.Update()
//		opt.ZeroGrad()
//	}
package amp

import (
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/optim"
)

// GradScalerConfig are the settings of a GradScaler. The zero value is PyTorch's default.
type GradScalerConfig struct {
	InitScale      float64 // default 65536
	GrowthFactor   float64 // by which the scale grows after GrowthInterval good steps; default 2
	BackoffFactor  float64 // by which it shrinks after a step with an infinity or NaN; default 0.5
	GrowthInterval int     // default 2000
	Disabled       bool    // Scale gives its argument, Step always steps
	// Reduce joins the flag of non-finite gradients (a float32 scalar, 0 or 1) over ranks whose parameters are sharded, in
	// place, by the maximum: ranks must agree to skip a step. Nil is for one rank.
	Reduce func(found *torch.Tensor) error
}

// GradScaler multiplies the loss so that small float16 gradients do not vanish, and skips steps whose gradients are not
// finite. It is for one goroutine.
type GradScaler struct {
	config  GradScalerConfig
	scale   float64
	tracker int // good steps since the scale last changed
	steps   []*optimizerState
}

// optimizerState says how far the present step of an optimiser is.
type optimizerState struct {
	opt      optim.Optimizer
	unscaled bool
	stepped  bool
	found    bool
}

// NewGradScaler makes a scaler. It throws (see torch.Try) where a setting makes no sense.
func NewGradScaler(c GradScalerConfig) *GradScaler {
	if c.InitScale == 0 {
		c.InitScale = 65536
	}
	if c.GrowthFactor == 0 {
		c.GrowthFactor = 2
	}
	if c.BackoffFactor == 0 {
		c.BackoffFactor = 0.5
	}
	if c.GrowthInterval == 0 {
		c.GrowthInterval = 2000
	}
	if !(c.InitScale > 0 && c.GrowthFactor > 1 && c.BackoffFactor > 0 && c.BackoffFactor < 1 && c.GrowthInterval > 0) {
		torch.Throw(fmt.Errorf("amp: scale %v, growth factor %v (want > 1), backoff factor %v (want in (0, 1)), growth interval %d (want > 0)",
			c.InitScale, c.GrowthFactor, c.BackoffFactor, c.GrowthInterval))
	}
	return &GradScaler{config: c, scale: c.InitScale}
}

// GetScale is the present scale, 1 where the scaler is disabled.
func (g *GradScaler) GetScale() float64 {
	if g.config.Disabled {
		return 1
	}
	return g.scale
}

// Scale multiplies a loss by the scale.
func (g *GradScaler) Scale(loss *torch.Tensor) *torch.Tensor {
	if g.config.Disabled {
		return loss
	}
	return loss.MulScalar(g.scale)
}

func (g *GradScaler) of(opt optim.Optimizer) *optimizerState {
	for _, s := range g.steps {
		if s.opt == opt {
			return s
		}
	}
	s := &optimizerState{opt: opt}
	g.steps = append(g.steps, s)
	return s
}

// Unscale divides the gradients of an optimiser's parameters by the scale, and looks for infinities and NaNs. Step does it
// where nobody has; a second call before Update is an error.
func (g *GradScaler) Unscale(opt optim.Optimizer) {
	if g.config.Disabled {
		return
	}
	s := g.of(opt)
	switch {
	case s.stepped:
		torch.Throw(errors.New("amp: Unscale after Step: Update must come first"))
	case s.unscaled:
		torch.Throw(errors.New("amp: Unscale a second time: Update must come first"))
	}
	s.found = g.unscale(opt)
	s.unscaled = true
}

// unscale works on the gradients of one device and dtype at a time.
func (g *GradScaler) unscale(opt optim.Optimizer) (found bool) {
	type batch struct {
		device torch.Device
		dtype  torch.DType
		grads  []*torch.Tensor
	}
	scope := torch.NewScope(nil)
	defer scope.Close()
	var batches []*batch
	for _, group := range opt.Groups() {
		for _, p := range group.Params {
			grad := p.In(scope).Grad()
			if grad == nil || grad.Numel() == 0 {
				continue
			}
			if grad.DType() == torch.Float16 {
				torch.Throw(errors.New("amp: a float16 gradient cannot be unscaled: keep the parameters in float32 and use Autocast"))
			}
			var b *batch
			for _, o := range batches {
				if o.device == grad.Device() && o.dtype == grad.DType() {
					b = o
				}
			}
			if b == nil {
				b = &batch{device: grad.Device(), dtype: grad.DType()}
				batches = append(batches, b)
			}
			b.grads = append(b.grads, grad)
		}
	}
	torch.NoGrad(func() {
		all := scope.Own(torch.Zeros(torch.Float32))
		for _, b := range batches {
			flag := scope.Own(torch.Zeros(torch.Float32)).ToDevice(b.device)
			inverse := scope.Own(torch.Scalar(torch.Float32, 1/g.scale)).ToDevice(b.device)
			torch.Call("aten::_amp_foreach_non_finite_check_and_unscale_", b.grads, flag, inverse)
			all.Copy(all.Maximum(flag.ToDevice(torch.CPU)))
		}
		if g.config.Reduce != nil {
			torch.Throw(g.config.Reduce(all))
		}
		found = all.Item() != 0
	})
	return found
}

// Step unscales the gradients if Unscale has not, and calls opt.Step unless one of them is an infinity or NaN. It tells
// whether it did.
func (g *GradScaler) Step(opt optim.Optimizer) (stepped bool) {
	if g.config.Disabled {
		opt.Step()
		return true
	}
	s := g.of(opt)
	if s.stepped {
		torch.Throw(errors.New("amp: Step a second time: Update must come first"))
	}
	if !s.unscaled {
		g.Unscale(opt)
	}
	s.stepped = true
	if s.found {
		return false
	}
	opt.Step()
	return true
}

// Update changes the scale after the steps of all optimisers: down where gradients were not finite, up after
// GrowthInterval good steps in a row. A scale that would grow beyond float32 stays.
func (g *GradScaler) Update() {
	if g.config.Disabled {
		return
	}
	checked, found := false, false
	for _, s := range g.steps {
		checked = checked || s.unscaled
		found = found || s.found
	}
	if !checked {
		torch.Throw(errors.New("amp: Update without a Step or an Unscale before it"))
	}
	g.steps = nil
	if found {
		g.scale = float64(float32(g.scale * g.config.BackoffFactor))
		g.tracker = 0
		return
	}
	if g.tracker++; g.tracker == g.config.GrowthInterval {
		if grown := float32(g.scale * g.config.GrowthFactor); grown-grown == 0 {
			g.scale = float64(grown)
		}
		g.tracker = 0
	}
}

// State is what a checkpoint keeps of a GradScaler; the names in JSON are those of PyTorch's state dict.
type State struct {
	Scale          float64 `json:"scale"`
	GrowthFactor   float64 `json:"growth_factor"`
	BackoffFactor  float64 `json:"backoff_factor"`
	GrowthInterval int     `json:"growth_interval"`
	GrowthTracker  int     `json:"_growth_tracker"`
}

// State gives the scaler's state.
func (g *GradScaler) State() State {
	return State{g.scale, g.config.GrowthFactor, g.config.BackoffFactor, g.config.GrowthInterval, g.tracker}
}

// LoadState takes over what State gave.
func (g *GradScaler) LoadState(s State) error {
	if !(s.Scale > 0 && s.GrowthFactor > 1 && s.BackoffFactor > 0 && s.BackoffFactor < 1 && s.GrowthInterval > 0 && s.GrowthTracker >= 0) {
		return fmt.Errorf("amp: the state of a GradScaler makes no sense: %+v", s)
	}
	g.scale, g.tracker = s.Scale, s.GrowthTracker
	g.config.GrowthFactor, g.config.BackoffFactor, g.config.GrowthInterval = s.GrowthFactor, s.BackoffFactor, s.GrowthInterval
	return nil
}
