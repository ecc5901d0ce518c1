package optim

import (
	"math"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/aten"
)

// The foreach updates: the formulas of PyTorch's multi-tensor implementations, each line one operator over all parameters
// of a batch. They round where PyTorch's default implementation on GPUs rounds, and work where a device has no fused kernels.

// adamForeach makes one step of Adam or AdamW; steps already count it.
func adamForeach(l torch.AdamLists, s torch.AdamScalars) {
	grads := l.Grads
	if s.Maximize {
		grads = aten.ForeachNeg(grads)
	}
	switch {
	case s.WeightDecay == 0:
	case s.Decoupled:
		torch.ForeachMulInPlace(l.Params, 1-s.LR*s.WeightDecay)
	default:
		grads = aten.ForeachAddList(grads, l.Params, aten.ForeachAddOptions{Alpha: s.WeightDecay})
	}
	aten.ForeachLerpInPlaceScalar(l.ExpAvgs, grads, 1-s.Beta1)
	torch.ForeachMulInPlace(l.ExpAvgSqs, s.Beta2)
	aten.ForeachAddcmulInPlaceScalar(l.ExpAvgSqs, grads, grads, aten.ForeachAddcmulOptions{Value: 1 - s.Beta2})

	sizes, roots := make([]torch.Number, len(l.Steps)), make([]torch.Number, len(l.Steps))
	for i, t := range l.Steps {
		step := t.Item()
		sizes[i] = -s.LR / (1 - math.Pow(s.Beta1, step))
		roots[i] = math.Sqrt(1 - math.Pow(s.Beta2, step))
	}
	second := l.ExpAvgSqs
	if s.AMSGrad {
		aten.ForeachMaximumInPlaceList(l.MaxExpAvgSqs, l.ExpAvgSqs)
		second = l.MaxExpAvgSqs
	}
	denominators := aten.ForeachSqrt(second)
	aten.ForeachDivInPlaceScalarList(denominators, roots)
	torch.ForeachAddScalarInPlace(denominators, s.Eps)
	aten.ForeachAddcdivInPlaceScalarList(l.Params, l.ExpAvgs, denominators, sizes)
}

// sgdForeach makes one step of stochastic gradient descent. Unlike PyTorch's it leaves the gradients as they are.
func sgdForeach(params, grads, momentum []*torch.Tensor, s torch.SGDScalars) {
	if s.Maximize {
		grads = aten.ForeachNeg(grads)
	}
	if s.WeightDecay != 0 {
		grads = aten.ForeachAddList(grads, params, aten.ForeachAddOptions{Alpha: s.WeightDecay})
	}
	if s.Momentum != 0 {
		if s.FirstStep {
			aten.ForeachCopyInPlace(momentum, grads)
		} else {
			torch.ForeachMulInPlace(momentum, s.Momentum)
			aten.ForeachAddInPlaceList(momentum, grads, aten.ForeachAddOptions{Alpha: 1 - s.Dampening})
		}
		if s.Nesterov {
			grads = aten.ForeachAddList(grads, momentum, aten.ForeachAddOptions{Alpha: s.Momentum})
		} else {
			grads = momentum
		}
	}
	aten.ForeachAddInPlaceList(params, grads, aten.ForeachAddOptions{Alpha: -s.LR})
}
