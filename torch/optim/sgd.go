package optim

import (
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// SGDConfig are the settings of SGD. The zero value of LR stands for PyTorch's default 1e-3.
type SGDConfig struct {
	LR          float64
	Momentum    float64
	Dampening   float64
	WeightDecay float64
	Nesterov    bool
	Maximize    bool
	Foreach     bool // PyTorch's foreach implementation instead of the fused kernel
}

// SGD is stochastic gradient descent.
type SGD struct {
	base
	config SGDConfig
}

var _ Optimizer = (*SGD)(nil)

// NewSGD makes an SGD optimiser of one group.
func NewSGD(params []*nn.Param, c SGDConfig) (*SGD, error) {
	c.LR = orDefault(c.LR, 1e-3)
	switch {
	case !(c.LR >= 0), !(c.Momentum >= 0), !(c.WeightDecay >= 0):
		return nil, fmt.Errorf("optim: SGD with learning rate %v, momentum %v, weight decay %v: none may be negative", c.LR, c.Momentum, c.WeightDecay)
	case c.Nesterov && (c.Momentum == 0 || c.Dampening != 0):
		return nil, fmt.Errorf("optim: Nesterov momentum needs a momentum and no dampening")
	}
	s := &SGD{base: base{name: "SGD"}, config: c}
	if c.Momentum != 0 {
		s.names = []string{"momentum_buffer"}
	}
	s.addGroup(params, c.LR, c.WeightDecay)
	return s, nil
}

// AddGroup adds parameters with a learning rate and a weight decay of their own.
func (s *SGD) AddGroup(params []*nn.Param, lr, weightDecay float64) {
	s.addGroup(params, lr, weightDecay)
}

// Step updates every parameter that has a gradient.
func (s *SGD) Step() {
	s.step(func(o *batch, scope *torch.Scope) {
		var momentum []*torch.Tensor
		if s.config.Momentum != 0 {
			momentum = o.list("momentum_buffer", scope)
		}
		update := torch.FusedSGD
		if s.config.Foreach {
			update = sgdForeach
		}
		update(o.params, o.grads, momentum, torch.SGDScalars{LR: o.group.LR, Momentum: s.config.Momentum,
			Dampening: s.config.Dampening, WeightDecay: o.group.WeightDecay, Nesterov: s.config.Nesterov,
			Maximize: s.config.Maximize, FirstStep: o.first && s.config.Momentum != 0})
	})
}
