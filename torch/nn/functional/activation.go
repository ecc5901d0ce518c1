package functional

import "github.com/gofsdp/gofsdp/torch"

// ReLU is max(x, 0).
func ReLU(x *torch.Tensor) *torch.Tensor { return x.ReLU() }

// LeakyReLU is x where it is positive, else slope · x. PyTorch's default slope is 0.01.
func LeakyReLU(x *torch.Tensor, slope float64) *torch.Tensor {
	return torch.CallOne("aten::leaky_relu", x, slope)
}

// ELU is x where it is positive, else alpha · (e^x − 1).
func ELU(x *torch.Tensor, alpha float64) *torch.Tensor { return torch.CallOne("aten::elu", x, alpha) }

// GELU is x · Φ(x); approximate is "none" or "tanh".
func GELU(x *torch.Tensor, approximate string) *torch.Tensor { return x.GELU(approximate) }

// SiLU is x · sigmoid(x).
func SiLU(x *torch.Tensor) *torch.Tensor { return x.SiLU() }

// Sigmoid is 1 / (1 + e^−x).
func Sigmoid(x *torch.Tensor) *torch.Tensor { return x.Sigmoid() }

// Tanh is the hyperbolic tangent.
func Tanh(x *torch.Tensor) *torch.Tensor { return x.Tanh() }

// Softplus is log(1 + e^x), linear above 20.
func Softplus(x *torch.Tensor) *torch.Tensor { return torch.CallOne("aten::softplus", x) }

// Softmax normalises exp(x) along dim.
func Softmax(x *torch.Tensor, dim int) *torch.Tensor { return x.Softmax(dim) }

// LogSoftmax is the logarithm of Softmax.
func LogSoftmax(x *torch.Tensor, dim int) *torch.Tensor { return x.LogSoftmax(dim) }
