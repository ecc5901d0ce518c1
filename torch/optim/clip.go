package optim

import (
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
)

// GradNorm is the norm of all gradients together, as if they were one vector: normType is 1, 2, any other positive number,
// or +Inf. Parameters without a gradient count as 0. Of sharded parameters it is this rank's part only.
func GradNorm(params []*nn.Param, normType float64) float64 {
	scope := torch.NewScope(nil)
	defer scope.Close()
	return gradNorm(grads(params, scope), normType)
}

// ClipGradNorm multiplies the gradients by min(1, maxNorm / (norm + 1e-6)) and returns the norm before, like
// torch.nn.utils.clip_grad_norm_. It is for parameters that are not sharded.
func ClipGradNorm(params []*nn.Param, maxNorm, normType float64) float64 {
	scope := torch.NewScope(nil)
	defer scope.Close()
	list := grads(params, scope)
	norm := gradNorm(list, normType)
	if coef := maxNorm / (norm + 1e-6); len(list) > 0 && !(coef >= 1) {
		torch.NoGrad(func() { torch.ForeachMulInPlace(list, coef) })
	}
	return norm
}

func grads(params []*nn.Param, s *torch.Scope) []*torch.Tensor {
	var list []*torch.Tensor
	for _, p := range params {
		if g := p.In(s).Grad(); g != nil && g.Numel() > 0 {
			list = append(list, g)
		}
	}
	return list
}

// gradNorm joins the norms of the tensors in float64, so that thousands of them lose nothing.
func gradNorm(list []*torch.Tensor, normType float64) float64 {
	var total float64
	torch.NoGrad(func() {
		if len(list) == 0 {
			return
		}
		norms := torch.ForeachNorm(list, normType)
		for i, n := range norms {
			norms[i] = n.ToDevice(torch.CPU).To(torch.Float64)
		}
		total = torch.Stack(0, norms...).Norm(normType).Item()
	})
	return total
}
