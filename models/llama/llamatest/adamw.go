package llamatest

import (
	"math"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// AdamW has the settings of PyTorch's optimiser of that name, with gradient clipping.
type AdamW struct {
	LR, Beta2, WeightDecay float64 // Beta2 0 stands for 0.999
	Clip                   float64 // 0: none
}

// Optimizer is a plain AdamW for tests: fused, on all trainable parameters of a model.
type Optimizer struct {
	AdamW
	params             []*nn.Param
	mean, square, step []*torch.Tensor
	scope              *torch.Scope
}

// NewAdamW makes the optimiser's state.
func NewAdamW(model any, c AdamW) *Optimizer {
	if c.Beta2 == 0 {
		c.Beta2 = 0.999
	}
	o := &Optimizer{AdamW: c, scope: torch.NewScope(nil)}
	for _, p := range nn.Params(model) {
		if !p.Trainable() {
			continue
		}
		o.params = append(o.params, p)
		o.mean = append(o.mean, o.scope.Own(torch.Zeros(torch.Float32, p.Shape()...)))
		o.square = append(o.square, o.scope.Own(torch.Zeros(torch.Float32, p.Shape()...)))
		o.step = append(o.step, o.scope.Own(torch.Zeros(torch.Float32)))
	}
	return o
}

// Step updates the parameters, clears the gradients and gives the gradients' norm before clipping.
func (o *Optimizer) Step() (norm float64) {
	torch.NoGrad(func() {
		s := torch.NewScope(nil)
		defer s.Close()
		in := func(list []*torch.Tensor) (bound []*torch.Tensor) {
			for _, t := range list {
				bound = append(bound, t.In(s))
			}
			return bound
		}
		var params, grads []*torch.Tensor
		for _, p := range o.params {
			params = append(params, p.In(s))
			grads = append(grads, p.In(s).Grad())
		}
		for _, n := range torch.ForeachNorm(grads, 2) {
			norm += n.Item() * n.Item()
		}
		norm = math.Sqrt(norm)
		if scale := o.Clip / (norm + 1e-6); o.Clip > 0 && scale < 1 {
			torch.ForeachMulInPlace(grads, scale)
		}
		torch.Call("aten::_foreach_add_.Scalar", in(o.step), 1)
		torch.Call("aten::_fused_adamw_", params, grads, in(o.mean), in(o.square), []*torch.Tensor{}, in(o.step),
			o.LR, 0.9, o.Beta2, o.WeightDecay, 1e-8, false, false)
		for _, p := range params {
			p.SetGrad(nil)
		}
	})
	return norm
}
