package nn

import "github.com/gofsdp/gofsdp/torch"

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
