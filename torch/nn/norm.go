package nn

import (
	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn/functional"
	"github.com/gofsdp/gofsdp/torch/nn/initializer"
)

// RMSNorm divides by the root mean square of the last dimension, computed in fp32, and multiplies by a weight.
type RMSNorm struct {
	Hooks
	Weight *Param `torch:"weight"` // (size)
	Eps    float64
}

// NewRMSNorm makes a norm with uninitialised (or, on torch.Meta, absent) weights.
func NewRMSNorm(size int64, eps float64, dtype torch.DType, device torch.Device) *RMSNorm {
	return &RMSNorm{Weight: NewParam(torch.EmptyOn(device, dtype, size), true), Eps: eps}
}

// Forward normalises x (…, size). A weight of another dtype than x is converted: norms may stay fp32 in a bf16 model.
func (n *RMSNorm) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	return torch.CallOne("gofsdp::rms_norm", x, n.Weight.In(c.Scope).To(x.DType()), n.Eps)
}

// ResetParameters sets the weight to 1.
func (n *RMSNorm) ResetParameters(*torch.Generator) { initializer.Ones(n.Weight.Tensor()) }

// LayerNorm normalises over the last dimensions, those of its weight.
type LayerNorm struct {
	Hooks
	Weight *Param `torch:"weight"` // or nil
	Bias   *Param `torch:"bias"`   // or nil
	Shape  []int64
	Eps    float64 // PyTorch's default is 1e-5
}

// NewLayerNorm makes a norm over dimensions of the given sizes with uninitialised (or, on torch.Meta, absent) values.
func NewLayerNorm(shape []int64, eps float64, dtype torch.DType, device torch.Device) *LayerNorm {
	return &LayerNorm{Shape: shape, Eps: eps, Weight: NewParam(torch.EmptyOn(device, dtype, shape...), true),
		Bias: NewParam(torch.EmptyOn(device, dtype, shape...), true)}
}

// Forward normalises x (…, shape).
func (n *LayerNorm) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	return x.LayerNorm(n.Shape, n.Weight.in(c.Scope), n.Bias.in(c.Scope), n.Eps)
}

// ResetParameters sets the weight to 1 and the bias to 0.
func (n *LayerNorm) ResetParameters(*torch.Generator) { resetNorm(n.Weight, n.Bias) }

// GroupNorm normalises groups of channels of each sample.
type GroupNorm struct {
	Hooks
	Weight *Param `torch:"weight"` // (channels), or nil
	Bias   *Param `torch:"bias"`   // (channels), or nil
	Groups int64
	Eps    float64 // PyTorch's default is 1e-5
}

// NewGroupNorm makes a norm with uninitialised (or, on torch.Meta, absent) values.
func NewGroupNorm(groups, channels int64, eps float64, dtype torch.DType, device torch.Device) *GroupNorm {
	return &GroupNorm{Groups: groups, Eps: eps, Weight: NewParam(torch.EmptyOn(device, dtype, channels), true),
		Bias: NewParam(torch.EmptyOn(device, dtype, channels), true)}
}

// Forward normalises x (batch, channels, …).
func (n *GroupNorm) Forward(c *Call, x *torch.Tensor) *torch.Tensor {
	return functional.GroupNorm(x, n.Groups, n.Weight.in(c.Scope), n.Bias.in(c.Scope), n.Eps)
}

// ResetParameters sets the weight to 1 and the bias to 0.
func (n *GroupNorm) ResetParameters(*torch.Generator) { resetNorm(n.Weight, n.Bias) }

func resetNorm(weight, bias *Param) {
	if weight != nil {
		initializer.Ones(weight.Tensor())
	}
	if bias != nil {
		initializer.Zeros(bias.Tensor())
	}
}
