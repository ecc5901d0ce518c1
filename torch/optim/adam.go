package optim

import (
	"fmt"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// AdamConfig are the settings of Adam and AdamW. Zero values of LR, Beta1, Beta2 and Eps stand for PyTorch's defaults
// 1e-3, 0.9, 0.999 and 1e-8; a learning rate of 0 is set with SetLR, and WeightDecay is used as it is.
type AdamConfig struct {
	LR          float64
	Beta1       float64
	Beta2       float64
	Eps         float64
	WeightDecay float64
	AMSGrad     bool
	Maximize    bool
	Foreach     bool // PyTorch's foreach implementation instead of the fused kernel
}

func (c AdamConfig) withDefaults() AdamConfig {
	c.LR = orDefault(c.LR, 1e-3)
	c.Beta1 = orDefault(c.Beta1, 0.9)
	c.Beta2 = orDefault(c.Beta2, 0.999)
	c.Eps = orDefault(c.Eps, 1e-8)
	return c
}

func orDefault(v, def float64) float64 {
	if v == 0 {
		return def
	}
	return v
}

func (c AdamConfig) check() error {
	switch {
	case !(c.LR >= 0):
		return fmt.Errorf("optim: learning rate %v is negative", c.LR)
	case !(c.Beta1 >= 0 && c.Beta1 < 1), !(c.Beta2 >= 0 && c.Beta2 < 1):
		return fmt.Errorf("optim: betas %v and %v are not in [0, 1)", c.Beta1, c.Beta2)
	case !(c.Eps >= 0):
		return fmt.Errorf("optim: eps %v is negative", c.Eps)
	case !(c.WeightDecay >= 0):
		return fmt.Errorf("optim: weight decay %v is negative", c.WeightDecay)
	}
	return nil
}

// Adam is Adam, or AdamW where the weight decay is decoupled from the gradient.
type Adam struct {
	base
	config    AdamConfig
	decoupled bool
}

var _ Optimizer = (*Adam)(nil)

// NewAdamW makes an AdamW optimiser of one group.
func NewAdamW(params []*nn.Param, c AdamConfig) (*Adam, error) {
	return newAdam("AdamW", params, c, true)
}

// NewAdam makes an Adam optimiser of one group; its weight decay is an L2 penalty on the gradient.
func NewAdam(params []*nn.Param, c AdamConfig) (*Adam, error) {
	return newAdam("Adam", params, c, false)
}

func newAdam(name string, params []*nn.Param, c AdamConfig, decoupled bool) (*Adam, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	a := &Adam{base: base{name: name, names: []string{"step", "exp_avg", "exp_avg_sq"}}, config: c, decoupled: decoupled}
	if c.AMSGrad {
		a.names = append(a.names, "max_exp_avg_sq")
	}
	a.addGroup(params, c.LR, c.WeightDecay)
	return a, nil
}

// AddGroup adds parameters with a learning rate and a weight decay of their own.
func (a *Adam) AddGroup(params []*nn.Param, lr, weightDecay float64) {
	a.addGroup(params, lr, weightDecay)
}

// Step updates every parameter that has a gradient.
func (a *Adam) Step() {
	a.step(func(o *batch, s *torch.Scope) {
		steps := o.list("step", s)
		torch.ForeachAddScalarInPlace(steps, 1)
		lists := torch.AdamLists{Params: o.params, Grads: o.grads, ExpAvgs: o.list("exp_avg", s),
			ExpAvgSqs: o.list("exp_avg_sq", s), Steps: steps}
		if a.config.AMSGrad {
			lists.MaxExpAvgSqs = o.list("max_exp_avg_sq", s)
		}
		update := torch.FusedAdam
		if a.config.Foreach {
			update = adamForeach
		}
		update(lists, torch.AdamScalars{LR: o.group.LR, Beta1: a.config.Beta1, Beta2: a.config.Beta2,
			WeightDecay: o.group.WeightDecay, Eps: a.config.Eps, AMSGrad: a.config.AMSGrad, Maximize: a.config.Maximize,
			Decoupled: a.decoupled})
	})
}
