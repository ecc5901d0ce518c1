package gotorch

import (
	"math"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/gofsdp/gofsdp/torch/optim"
)

// Optimizer updates parameters from the gradients that Backward leaves on them.
type Optimizer struct {
	Opt optim.Optimizer // its first group is empty, and holds the settings of the groups that AddParameters adds
}

// SGD makes an optimiser that descends the gradient.
func SGD(lr, momentum, dampening, weightDecay float64, nesterov bool) Optimizer {
	o, err := optim.NewSGD(nil, optim.SGDConfig{LR: lr, Momentum: momentum, Dampening: dampening, WeightDecay: weightDecay,
		Nesterov: nesterov})
	torch.Throw(err)
	return withLR(o, lr)
}

// Adam makes an Adam optimiser. Its weight decay is an L2 penalty on the gradient, its epsilon 1e-8.
func Adam(lr, beta1, beta2, weightDecay float64) Optimizer {
	// optim takes a beta of 0 for its default. The smallest number has the same effect: 1 minus it is 1.
	notZero := func(beta float64) float64 {
		if beta == 0 {
			return math.SmallestNonzeroFloat64
		}
		return beta
	}
	o, err := optim.NewAdam(nil, optim.AdamConfig{LR: lr, Beta1: notZero(beta1), Beta2: notZero(beta2), WeightDecay: weightDecay})
	torch.Throw(err)
	return withLR(o, lr)
}

// withLR sets the learning rate of the first group, of which optim takes 0 for its default.
func withLR(o optim.Optimizer, lr float64) Optimizer {
	g := o.Groups()[0]
	g.LR, g.InitialLR = lr, lr
	return Optimizer{o}
}

// AddParameters adds a group of parameters, with the learning rate that the optimiser was made with.
func (opt Optimizer) AddParameters(tensors []Tensor) {
	params := make([]*nn.Param, len(tensors))
	for i, a := range tensors {
		t := a.Torch()
		if t.Scope() != nil {
			t = t.In(nil)
		}
		params[i] = nn.NewParam(t, t.RequiresGrad())
	}
	settings := opt.Opt.Groups()[0]
	opt.Opt.(interface {
		AddGroup(params []*nn.Param, lr, weightDecay float64)
	}).AddGroup(params, settings.InitialLR, settings.WeightDecay)
}

// ZeroGrad sets the gradients to zero. As in the original they stay, so that momentum and weight decay act in the next
// Step even on a parameter that Backward does not reach.
func (opt Optimizer) ZeroGrad() {
	torch.NoGrad(func() {
		for _, group := range opt.Opt.Groups() {
			for _, p := range group.Params {
				if g := p.Tensor().Grad(); g != nil {
					g.Zero().Free()
				}
			}
		}
	})
}

// Step updates every parameter that has a gradient.
func (opt Optimizer) Step() { opt.Opt.Step() }

// SetLR sets the learning rate of all parameters.
func (opt Optimizer) SetLR(lr float64) {
	for _, group := range opt.Opt.Groups()[1:] {
		group.LR = lr
	}
}

// Close frees the optimiser's state. It may be called twice, or not at all.
func (opt Optimizer) Close() { opt.Opt.Close() }
