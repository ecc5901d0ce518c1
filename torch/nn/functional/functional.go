// Package functional holds the layers of package nn as plain functions of tensors: convolutions, pooling, norms,
// activations and losses, named as in torch.nn.functional. Faults in arguments panic with a *torch.Error, like all
// operators.
package functional

import "github.com/gofsdp/gofsdp/torch"

// sizes gives n values: one value stands for all dimensions, none for the fallback.
func sizes(v []int64, n int, fallback int64) []int64 {
	switch len(v) {
	case n:
		return v
	case 0:
		v = []int64{fallback}
	case 1:
	default:
		return v // the operator names what it expects
	}
	list := make([]int64, n)
	for i := range list {
		list[i] = v[0]
	}
	return list
}

func orOne(n int64) int64 {
	if n == 0 {
		return 1
	}
	return n
}

// optional keeps a nil tensor an absent argument.
func optional(t *torch.Tensor) any {
	if t == nil {
		return nil
	}
	return t
}

// Linear is x × weightᵀ + bias; weight is (out, in), bias (out) or nil.
func Linear(x, weight, bias *torch.Tensor) *torch.Tensor { return x.Linear(weight, bias) }

// Dropout zeroes each element with probability p and scales the others by 1/(1−p), drawing from the process-wide
// generator; outside training it gives x. nn.Dropout draws from the call's generator instead.
func Dropout(x *torch.Tensor, p float64, training bool) *torch.Tensor {
	return torch.CallOne("aten::dropout", x, p, training)
}
